// A night's controls, pressed as a person would: node e2e/control.mjs BASE_URL [SCREENSHOT_DIR]
//
// Needs a running server with a worker whose first preset trains with previews. Previews and a checkpoint are asked for, the
// checkpoint is pinned, the job is paused, edited, resumed to its end and extended; then its settings are compared with the preset's.
// Settings: SAFELIGHT_E2E_PATCH, SAFELIGHT_E2E_SECONDS and SAFELIGHT_TOKEN as in form-to-preview; SAFELIGHT_E2E_STEPS (default 400).
import { checkAxe, enter, expect, getJson, jobEnded, merge, run, screenshotsTo } from './common.mjs';

const [base, folder] = process.argv.slice(2);
const patch = JSON.parse(process.env.SAFELIGHT_E2E_PATCH ?? '{}');
const steps = Number(process.env.SAFELIGHT_E2E_STEPS ?? 400);
const timeout = 1000 * Number(process.env.SAFELIGHT_E2E_SECONDS ?? 300);
const shoot = screenshotsTo(folder);

const button = (page, name) => page.getByRole('button', { name, exact: true });
const status = (page) => page.locator('.job-status').getAttribute('data-status');
const hasStatus = (page, wanted) => page.waitForFunction((word) => document.querySelector('.job-status')?.getAttribute('data-status') === word, wanted, { timeout }).catch(() => {});
const jobOf = (page, id) => getJson(page, `/v1/jobs/${id}`);
const checkpointsOf = async (page, id) => (await getJson(page, `/v1/jobs/${id}/files`)).files.filter(({ kind }) => kind === 'weights');

/** Asks again and again until `check` answers something. */
async function until(what, check) {
  for (const end = Date.now() + timeout; Date.now() < end; ) {
    const found = await check();
    if (found) return found;
    await new Promise((done) => setTimeout(done, 250));
  }
  throw new Error(`expected ${what} within ${timeout / 1000} s`);
}

async function start(page) {
  await page.goto(`${base}/new`);
  const json = page.locator('.json textarea');
  const spec = merge(JSON.parse(await json.inputValue()), merge({ name: 'controls', train: { steps } }, patch));
  await json.fill(JSON.stringify(spec, null, 2));
  await page.getByRole('button', { name: 'Start job' }).click();
  await page.waitForURL(/\/jobs\/[^/?]+/, { timeout: 15_000 });
  const id = new URL(page.url()).pathname.split('/')[2];
  await hasStatus(page, 'running');
  expect('the job to run', (await status(page)) === 'running', (await jobOf(page, id)).error);
  return id;
}

async function askAndPin(page, id) {
  await until('the first previews', async () => (await jobOf(page, id)).num_samples > 0);
  const before = (await jobOf(page, id)).num_samples;
  await button(page, 'Preview now').click();
  await until('previews that were asked for', async () => (await jobOf(page, id)).num_samples > before);
  await button(page, 'Preview now').waitFor({ timeout: 20_000 });
  expect('the button to be ready for the next wish', (await jobOf(page, id)).asked.length === 0);
  await button(page, 'Save now').click();
  const [saved] = await until('a checkpoint that was asked for', async () => {
    const found = await checkpointsOf(page, id);
    return found.length > 0 && found;
  });
  expect('the job to go on meanwhile', ['running', 'preparing'].includes(await status(page)), await status(page));

  await page.getByRole('link', { name: 'Files', exact: true }).click();
  const row = page.locator(`tr[data-step="${saved.step}"]`);
  await row.getByRole('button', { name: /^Pin the checkpoint/ }).click();
  await row.getByRole('button', { name: /^Pinned/ }).waitFor({ timeout: 10_000 }).catch(() => {});
  expect('the checkpoint to be pinned, on the page and in the API', (await row.getByRole('button').innerText()) === 'Pinned' && (await checkpointsOf(page, id)).find(({ step }) => step === saved.step)?.pinned === true);
  await checkAxe(page, 'the files with a pin');
  await shoot(page, 'control-files');
  return saved.step;
}

async function pauseAndEdit(page, id) {
  await page.goto(`${base}/jobs/${id}`);
  await button(page, 'Pause').click();
  await hasStatus(page, 'paused');
  await page.locator('.job-status', { hasText: '; saved' }).waitFor({ timeout: 10_000 }).catch(() => {});
  const said = await page.locator('.job-status').innerText();
  expect('a paused job to say at which step, and that it is saved', /Paused at step [\d,]+; saved/.test(said), said);
  await shoot(page, 'control-paused');
  await page.goto(base);
  const row = page.locator('section[aria-labelledby="paused-title"] li');
  await row.waitFor({ timeout: 10_000 });
  expect('the list to have it under Paused', (await row.count()) === 1 && /Paused at step/.test(await row.innerText()), await row.allInnerTexts());
  await checkAxe(page, 'the list with a paused job');
  await shoot(page, 'control-list');

  const { step } = await jobOf(page, id);
  await page.goto(`${base}/jobs/${id}`);
  await page.getByRole('link', { name: 'Extend or edit' }).click();
  await page.locator('.changes').waitFor({ timeout: 10_000 });
  expect('an unchanged job to change nothing', /nothing changes/.test(await page.locator('.changes').innerText()), await page.locator('.changes').innerText());
  const field = page.locator('[data-pointer="/train/steps"] input');
  const total = step + 20;
  await field.fill(String(total));
  const change = page.locator('.changes li');
  await change.waitFor({ timeout: 10_000 });
  const told = await change.innerText();
  expect('the change with what it does', told.includes('Steps') && told.includes('the run ends there'), told);
  // What the saved weights depend on is refused at its field.
  const json = page.locator('.json textarea');
  const spec = JSON.parse(await json.inputValue());
  await json.fill(JSON.stringify({ ...spec, train: { ...spec.train, optimizer: 'sgd' } }, null, 2));
  await page.locator('.findings .bad').first().waitFor({ timeout: 10_000 });
  expect('what cannot change to be named', /cannot change at resume/.test(await page.locator('.findings').innerText()), await page.locator('.findings').innerText());
  await shoot(page, 'control-edit-refused');
  await json.fill(JSON.stringify(spec, null, 2));
  await page.locator('.findings .bad').first().waitFor({ state: 'detached', timeout: 10_000 });
  await checkAxe(page, 'the job that is edited');
  await shoot(page, 'control-edit');
  await page.getByRole('button', { name: 'Queue again' }).click();
  await page.waitForURL((url) => url.pathname === `/jobs/${id}`, { timeout: 15_000 }).catch(() => {});
  expect('the job to be queued again', new URL(page.url()).pathname === `/jobs/${id}`, await page.locator('.field-problem, .submit-message').allInnerTexts());
  expect('it to end', (await jobEnded(page, timeout)) === 'succeeded', (await jobOf(page, id)).error);
  const done = await jobOf(page, id);
  expect(`all ${total} steps`, done.step === total && done.total_steps === total, done.step);
  return total;
}

async function extend(page, id, pinned, total) {
  await page.getByRole('link', { name: 'Extend or edit' }).click();
  const field = page.locator('[data-pointer="/train/steps"] input');
  await field.waitFor();
  expect('a job that is done to open with twice the steps', (await field.inputValue()) === String(2 * total), await field.inputValue());
  await field.fill(String(total + 10));
  await page.locator('.changes li').waitFor({ timeout: 10_000 });
  await page.getByRole('button', { name: 'Queue again' }).click();
  await page.waitForURL((url) => url.pathname === `/jobs/${id}`, { timeout: 15_000 });
  await until('the longer run to end', async () => {
    const { status: now, step } = await jobOf(page, id);
    return now === 'succeeded' && step === total + 10;
  });
  const kept = (await checkpointsOf(page, id)).map(({ step }) => step);
  expect('the pinned checkpoint and the earlier end to be there still', kept.includes(pinned) && kept.includes(total), kept);
}

async function compare(page, id) {
  await page.goto(`${base}/jobs/${id}?tab=config`);
  const choice = page.getByLabel('Compare with');
  await page.waitForFunction(() => document.querySelectorAll('select[aria-label="Compare with"] option').length > 1, null, { timeout: 10_000 });
  await choice.selectOption({ index: 1 });
  const added = page.locator('.diff-new');
  await added.first().waitFor({ timeout: 10_000 });
  expect('the lines that differ from the preset, the name among them', (await added.allInnerTexts()).some((line) => line.includes('"controls"')));
  await page.reload();
  await added.first().waitFor({ timeout: 10_000 });
  expect('a reload to keep the comparison', new URL(page.url()).searchParams.get('against')?.startsWith('preset:'));
  await checkAxe(page, 'the settings that differ');
  await shoot(page, 'control-diff');
}

await run('control', base, async (browser) => {
  const errors = [];
  const page = await enter(browser, base, errors);
  const id = await start(page);
  const pinned = await askAndPin(page, id);
  const total = await pauseAndEdit(page, id);
  await extend(page, id, pinned, total);
  await compare(page, id);
  expect('no script error', errors.length === 0, errors);
});
