// What must hold when things go wrong: node e2e/robust.mjs BASE_URL
//
// Needs a running server with a worker whose first preset finishes a short job (SAFELIGHT_E2E_PATCH, as in form-to-preview). It
// breaks the connection while a job runs, loses a reply to a submit, presses twice, reloads, goes back.
import { checkPreviews, expect, getJson, jobEnded, merge, run, signIn } from './common.mjs';

const [base] = process.argv.slice(2);
const patch = JSON.parse(process.env.SAFELIGHT_E2E_PATCH ?? '{}');
const steps = Number(process.env.SAFELIGHT_E2E_STEPS ?? 60);
const jobTimeout = 1000 * Number(process.env.SAFELIGHT_E2E_SECONDS ?? 300);
const name = `robust ${Date.now().toString(36)}`;

const jobsNamed = async (page) => (await getJson(page, `/v1/jobs?q=${encodeURIComponent(name)}`)).jobs;
const nameField = (page) => page.locator('[data-pointer="/name"] input');
const start = (page) => page.getByRole('button', { name: 'Start job' });

async function submitOnce(page) {
  await page.goto(`${base}/new`);
  const json = page.locator('.json textarea');
  const spec = merge(JSON.parse(await json.inputValue()), merge({ name, train: { steps } }, patch));
  await json.fill(JSON.stringify(spec, null, 2));
  await page.reload();
  expect('a reload keeps what was typed', (await nameField(page).inputValue()) === name, await nameField(page).inputValue());

  await json.fill('{\n  "name": oops\n}');
  expect('a mistake in the JSON is told with its line', /Line 2, column 11/.test(await page.locator('#json-mistake').innerText()), await page.locator('#json-mistake').innerText());
  await json.fill(JSON.stringify(spec, null, 2));

  // The server takes the job, but its reply is lost.
  let lost = 0;
  await page.route('**/v1/jobs', async (route) => {
    if (route.request().method() !== 'POST' || lost > 0) return route.continue();
    lost += 1;
    await route.fetch();
    return route.abort();
  });
  await start(page).click();
  await page.locator('.submit-message .bad').waitFor({ timeout: 10_000 });
  expect('a lost reply is told', /did not answer/.test(await page.locator('.submit-message').innerText()));
  expect('a lost reply costs nothing typed', (await nameField(page).inputValue()) === name);
  await start(page).dblclick();
  await page.waitForURL(/\/jobs\/[^/?]+/, { timeout: 15_000 });
  await page.unroute('**/v1/jobs');
  const made = await jobsNamed(page);
  expect('pressing again, and twice, made one job', made.length === 1, made.length);
  return made[0].id;
}

async function breakConnection(page, context, id, streams) {
  await page.waitForFunction(() => document.querySelector('.job-status')?.getAttribute('data-status') === 'running', null, { timeout: jobTimeout });
  await page.locator('.previews img').first().waitFor({ timeout: jobTimeout });
  expect('one stream for the open job and none for lists', streams.length === 1 && streams[0].includes(`/v1/jobs/${id}/events`), streams);

  // A line that breaks, then a server that answers with an error: the browser alone would give up there.
  let refused = 0;
  await page.route(`**/v1/jobs/${id}/events*`, (route) => {
    refused += 1;
    return refused <= 2 ? route.fulfill({ status: 503, body: 'away' }) : route.continue();
  });
  await context.setOffline(true);
  await page.evaluate((path) => window.safelightBreak?.(path), `/v1/jobs/${id}/events`);
  await page.locator('.reconnect[data-shown]').waitFor({ timeout: 20_000 });
  expect('a bar says that the line is broken', /nothing is lost/.test(await page.locator('.reconnect').innerText()));
  await context.setOffline(false);
  await page.locator('.reconnect:not([data-shown])').waitFor({ state: 'attached', timeout: 30_000 });
  expect('the bar goes when the line is back', refused > 2, { refused });
  const again = streams.at(-1);
  expect('the stream goes on from the last event', /after=\d+/.test(again), again);

  const status = await jobEnded(page, jobTimeout);
  expect('the job to succeed', status === 'succeeded', status);
  await checkPreviews(page, id, 'after the break');
  await page.waitForTimeout(1500);
  const before = streams.length;
  await page.waitForTimeout(2500);
  expect('no stream is opened after the end', streams.length === before, streams.slice(before));
}

async function charts(page, id) {
  await page.getByRole('link', { name: 'Charts' }).click();
  const label = page.locator('.chart [role="img"]').first();
  const { points } = await getJson(page, `/v1/jobs/${id}/metrics?name=loss&points=2000`);
  await page.waitForTimeout(800);
  const told = await label.getAttribute('aria-label');
  expect(`the loss chart holds the ${points.length} points of the API`, told?.includes(`over ${points.length} points`), told);
}

async function backAndForth(page, id) {
  await page.goto(`${base}/?q=${encodeURIComponent(name)}&show=succeeded`);
  await page.locator('.ended .row-link').first().click();
  await page.waitForURL(/\/jobs\//);
  await page.locator('.stage-picture').first().click();
  await page.waitForURL(/view=\d+/);
  const shown = new URL(page.url()).searchParams.get('view');
  await page.keyboard.press('ArrowLeft');
  await page.waitForFunction((old) => new URL(location.href).searchParams.get('view') !== old, shown);
  const left = new URL(page.url()).searchParams.get('view');
  await page.reload();
  await page.locator('.viewer-space img').waitFor();
  expect('a reload keeps the picture in the viewer', new URL(page.url()).searchParams.get('view') === left);
  await page.keyboard.press('Escape');
  await page.waitForURL((url) => !url.searchParams.has('view'));
  await page.locator('.scrubber input').focus();
  await page.keyboard.press('Home');
  await page.waitForURL(/step=/);
  const step = await page.locator('.scrubber-step').innerText();
  await page.reload();
  await page.locator('.scrubber-step').waitFor();
  expect('a reload keeps the step', (await page.locator('.scrubber-step').innerText()) === step, step);
  await page.getByRole('link', { name: 'Log', exact: true }).click();
  await page.waitForURL(/tab=log/);
  await page.goBack();
  await page.locator('.scrubber-step').waitFor();
  expect('Back is the same view again', (await page.locator('.scrubber-step').innerText()) === step);
  await page.goBack();
  await page.waitForURL(/show=succeeded/).catch(() => {});
  expect('Back keeps the filters of the list', page.url().includes('show=succeeded') && page.url().includes('q=robust'), page.url());
  expect('the search shows what it filters by', (await page.locator('.search input').inputValue()) === name);
  expect('the job is in the list once', (await page.locator(`a[href="/jobs/${id}"]`).count()) === 1);
}

async function keyboard(page) {
  await page.goto(base);
  await page.locator('.ended .row-link').first().waitFor();
  await page.keyboard.press('j');
  expect('j goes to the first job', await page.evaluate(() => document.activeElement?.hasAttribute('data-nav')));
  await page.keyboard.press('/');
  expect('/ goes to the search', await page.evaluate(() => document.activeElement?.getAttribute('type') === 'search'));
  await page.keyboard.type('n?');
  expect('letters in a field are letters', (await page.locator('.search input').inputValue()) === 'n?' && new URL(page.url()).pathname === '/');
  await page.keyboard.press('Escape');
  await page.keyboard.press('?');
  await page.getByRole('dialog', { name: 'Keyboard' }).waitFor();
  await page.keyboard.press('Escape');
  await page.getByRole('dialog').waitFor({ state: 'detached' });
  await page.keyboard.press('n');
  await page.waitForURL(/\/new/);
  await page.keyboard.press('Escape');
  await page.waitForURL((url) => url.pathname === '/');
  expect('n opens the form and Esc goes back', true);
}

await run('robust', base, async (browser) => {
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, colorScheme: 'dark' });
  const page = await context.newPage();
  // Going offline leaves open streams alone; this lets the test end one as a broken line would.
  await page.addInitScript(() => {
    const Real = window.EventSource;
    const open = [];
    window.EventSource = class extends Real {
      constructor(url) {
        super(url);
        open.push(this);
      }
    };
    window.safelightBreak = (path) => {
      for (const source of open.filter(({ url, readyState }) => url.includes(path) && readyState !== 2)) {
        source.close();
        source.dispatchEvent(new Event('error'));
      }
    };
  });
  const streams = [];
  await page.goto(base);
  await signIn(page);
  await page.goto(`${base}/new`); // closes the list's stream
  page.on('request', (request) => request.resourceType() === 'eventsource' && streams.push(request.url()));
  const id = await submitOnce(page);
  await breakConnection(page, context, id, streams);
  await charts(page, id);
  await backAndForth(page, id);
  await keyboard(page);
});
