// From the form to the finished previews, as a person would: node e2e/form-to-preview.mjs BASE_URL [SCREENSHOT_DIR]
//
// Needs a running server with a worker, and a browser (CHROMIUM, default /usr/bin/chromium). Settings:
//   SAFELIGHT_E2E_PRESET   name of the preset (default: the first one)
//   SAFELIGHT_E2E_STEPS    training steps (default 6)
//   SAFELIGHT_E2E_PATCH    JSON merge patch for the spec, typed into the JSON pane
//   SAFELIGHT_E2E_SECONDS  how long the job may take (default 300)
//   SAFELIGHT_TOKEN        signs in where the server asks for it
// Exits 1 with one line saying what was expected and what was seen.
import { checkAxe, checkPreviews, enter, expect, getJson, jobEnded, merge, run, screenshotsTo } from './common.mjs';

const [base, folder] = process.argv.slice(2);
const presetName = process.env.SAFELIGHT_E2E_PRESET;
const steps = Number(process.env.SAFELIGHT_E2E_STEPS ?? 6);
const patch = JSON.parse(process.env.SAFELIGHT_E2E_PATCH ?? '{}');
const jobTimeout = 1000 * Number(process.env.SAFELIGHT_E2E_SECONDS ?? 300);
const shoot = screenshotsTo(folder);

async function fillForm(page) {
  await page.goto(`${base}/new`);
  await page.locator('.json textarea').waitFor();
  if (presetName) {
    const radio = page.locator(`input[name="preset"][value="${presetName}"]`);
    expect(`a preset named ${presetName}`, (await radio.count()) === 1);
    await radio.check();
    await page.waitForURL((url) => url.searchParams.get('preset') === presetName || url.search === '');
  }
  const json = page.locator('.json textarea');
  const spec = merge(JSON.parse(await json.inputValue()), patch);
  await json.fill(JSON.stringify(spec, null, 2));

  // Form and JSON are two faces of one spec.
  const field = page.locator('[data-pointer="/train/steps"] input');
  expect('at most 10 inputs are open besides the prompts', (await page.locator('.form-section .field:visible:not(:has(textarea))').count()) <= 10);
  await field.fill('0');
  expect('the JSON follows the form', JSON.parse(await json.inputValue()).train.steps === 0);

  // A mistake is told at its field, and the focus goes there.
  await json.focus();
  await page.getByRole('button', { name: 'Start job' }).click();
  await page.locator('[data-pointer="/train/steps"] .field-problem').first().waitFor({ timeout: 10_000 });
  await page.waitForFunction(() => document.activeElement?.closest('[data-pointer]')?.getAttribute('data-pointer') === '/train/steps', null, { timeout: 5000 }).catch(() => {});
  const focused = await page.evaluate(() => document.activeElement?.closest('[data-pointer]')?.getAttribute('data-pointer') ?? document.activeElement?.tagName);
  expect('the focus at the field with the mistake', focused === '/train/steps', focused);
  expect('still on the form after a refusal', new URL(page.url()).pathname === '/new', page.url());
  await shoot(page, 'new-problem');

  await field.fill(String(steps));
  const verdict = page.locator('.plan [role="status"]');
  await page.waitForFunction(() => document.querySelector('.plan')?.getAttribute('aria-busy') === 'false', null, { timeout: 10_000 }).catch(() => {});
  expect('the plan to say that this will run', (await verdict.innerText()) === 'This will run', await page.locator('.findings li').allInnerTexts());
  await checkAxe(page, 'the form');
  await shoot(page, 'new');
}

async function followJob(page) {
  await page.getByRole('button', { name: 'Start job' }).click();
  await page.waitForURL(/\/jobs\/[^/?]+/, { timeout: 15_000 }).catch(() => {});
  expect('the job to be taken', new URL(page.url()).pathname.startsWith('/jobs/'), await page.locator('.field-problem, .submit-message').allInnerTexts());
  const id = new URL(page.url()).pathname.split('/')[2];
  console.log(`ok  submitted ${id}`);
  await page.waitForFunction(() => [...document.querySelectorAll('.previews img')].some((img) => img.complete && img.naturalWidth > 0), null, { timeout: jobTimeout }).catch(() => {});
  const width = await page.evaluate(() => Math.max(0, ...[...document.querySelectorAll('.previews img')].map((img) => img.naturalWidth)));
  expect('a decoded preview, without a reload', width > 0, { width, status: await page.locator('.job-status').innerText() });
  await shoot(page, 'job-live');
  const status = await jobEnded(page, jobTimeout);
  expect('the page to say that the job succeeded', status === 'succeeded', { status, error: (await getJson(page, `/v1/jobs/${id}`)).error?.message });
  await checkPreviews(page, id, 'at the end');
  await page.reload();
  await page.locator('.previews img').first().waitFor({ timeout: 10_000 });
  await checkPreviews(page, id, 'after a reload');
  return id;
}

await run('form-to-preview', base, async (browser) => {
  const errors = [];
  const page = await enter(browser, base, errors);
  await page.locator('h1').first().waitFor();
  await checkAxe(page, 'the list of jobs');
  await shoot(page, 'home');

  await fillForm(page);
  const id = await followJob(page);
  await checkAxe(page, 'the job, 1440 dark');
  await shoot(page, 'job-1440-dark');
  for (const tab of ['charts', 'files', 'log', 'config']) {
    await page.goto(`${base}/jobs/${id}?tab=${tab}`);
    await page.waitForTimeout(700);
    await checkAxe(page, `the job's ${tab}`);
    await shoot(page, `job-${tab}`);
  }

  const phone = await browser.newContext({ viewport: { width: 390, height: 844 }, colorScheme: 'light', storageState: await page.context().storageState() });
  const small = await phone.newPage();
  small.on('pageerror', (error) => errors.push(error.message));
  await small.goto(`${base}/jobs/${id}`);
  await small.locator('.previews img').first().waitFor({ timeout: 10_000 });
  await small.waitForTimeout(300);
  const beyond = await small.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
  expect('nothing wider than a 390 px screen', beyond <= 0, beyond);
  await checkAxe(small, 'the job, 390 light');
  await shoot(small, 'job-390-light');
  await small.goto(base);
  await small.locator('.ended').waitFor({ timeout: 10_000 });
  await checkAxe(small, 'the list, 390 light');
  await shoot(small, 'home-390-light');
  expect('no script error', errors.length === 0, errors);
});
