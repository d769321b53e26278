// From the form to the finished previews, as a person would: node e2e/form-to-preview.mjs BASE_URL [SCREENSHOT_DIR]
//
// Needs a running server with a worker, and a browser (CHROMIUM, default /usr/bin/chromium). Settings:
//   SAFELIGHT_E2E_PRESET   name of the preset (default: the first one)
//   SAFELIGHT_E2E_STEPS    training steps (default 6)
//   SAFELIGHT_E2E_PATCH    JSON merge patch for the spec, typed into the JSON pane
//   SAFELIGHT_E2E_SECONDS  how long the job may take (default 300)
//   SAFELIGHT_TOKEN        signs in where the server asks for it
// Exits 1 with one line saying what was expected and what was seen.
import { mkdirSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { chromium } from 'playwright-core';

const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const FLAGS = ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'];
const ENDED = ['succeeded', 'failed', 'canceled'];

const [base, shots] = process.argv.slice(2);
const presetName = process.env.SAFELIGHT_E2E_PRESET;
const steps = Number(process.env.SAFELIGHT_E2E_STEPS ?? 6);
const patch = JSON.parse(process.env.SAFELIGHT_E2E_PATCH ?? '{}');
const jobTimeout = 1000 * Number(process.env.SAFELIGHT_E2E_SECONDS ?? 300);

function expect(what, condition, seen) {
  if (!condition) throw new Error(`expected ${what}${seen === undefined ? '' : `; seen: ${JSON.stringify(seen)}`}`);
  console.log(`ok  ${what}`);
}

/** RFC 7396. */
function merge(target, change) {
  if (change === null || typeof change !== 'object' || Array.isArray(change)) return change;
  const made = target !== null && typeof target === 'object' && !Array.isArray(target) ? { ...target } : {};
  for (const [key, value] of Object.entries(change)) {
    if (value === null) delete made[key];
    else made[key] = merge(made[key], value);
  }
  return made;
}

async function shoot(page, name) {
  if (!shots) return;
  mkdirSync(shots, { recursive: true });
  await page.screenshot({ path: join(shots, `${name}.png`) });
}

async function checkAxe(page, where) {
  await page.evaluate(AXE); // not a script tag: a strict content policy would refuse that
  const found = await page.evaluate(async () => {
    const { violations } = await window.axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa'] });
    return violations.map(({ id, impact, nodes }) => `${id} (${impact}): ${nodes.slice(0, 2).map(({ target }) => target.join(' ')).join(', ')}`);
  });
  expect(`no accessibility violation on ${where}`, found.length === 0, found);
}

const getJson = (page, path) => page.evaluate(async (url) => (await fetch(url)).json(), path);

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
  await page.waitForFunction(() => document.querySelectorAll('.field-problem').length === 0 && document.querySelector('.plan')?.getAttribute('aria-busy') === 'false', null, { timeout: 10_000 }).catch(() => {});
  expect('no problem left in the form', (await page.locator('.field-problem').count()) === 0, await page.locator('.field-problem').allInnerTexts());
  await checkAxe(page, 'the form');
  await shoot(page, 'new');
}

/** Every preview that the contact sheet (or the wall) has drawn, scrolled through from end to end. */
async function previewsOnPage(page) {
  return page.evaluate(async () => {
    const seen = new Map();
    let twice = 0;
    const take = () => {
      const now = [...document.querySelectorAll('[data-sample-index]')].map((cell) => cell.getAttribute('data-sample-index'));
      twice += now.length - new Set(now).size;
      now.forEach((index) => seen.set(index, true));
    };
    const scroller = document.querySelector('.sheet-scroller');
    for (let x = 0; scroller && x < scroller.scrollWidth; x += scroller.clientWidth) {
      scroller.scrollLeft = x;
      await new Promise((done) => setTimeout(done, 120));
      take();
    }
    take();
    return { indexes: [...seen.keys()].map(Number).sort((a, b) => a - b), twice, told: Number(document.querySelector('.previews')?.getAttribute('data-num-samples')) };
  });
}

async function checkPreviews(page, id, when) {
  const { samples } = await getJson(page, `/v1/jobs/${id}/samples`);
  const wanted = samples.map(({ index }) => index);
  expect(`some previews ${when}`, wanted.length > 0);
  await page.waitForFunction((count) => Number(document.querySelector('.previews')?.getAttribute('data-num-samples')) >= count, wanted.length, { timeout: 10_000 }).catch(() => {});
  const { indexes, twice, told } = await previewsOnPage(page);
  expect(`the page holds the ${wanted.length} previews of the API ${when}, each once`, told === wanted.length && twice === 0 && indexes.join() === wanted.join(), { told, twice, indexes, wanted });
  const decoded = await page.evaluate(() => [...document.querySelectorAll('.previews img')].filter((img) => img.complete && img.naturalWidth === 0).map((img) => img.src));
  expect(`no broken picture ${when}`, decoded.length === 0, decoded);
}

async function followJob(page) {
  await page.getByRole('button', { name: 'Start job' }).click();
  await page.waitForURL(/\/jobs\/[^/?]+/, { timeout: 15_000 });
  const id = new URL(page.url()).pathname.split('/')[2];
  console.log(`ok  submitted ${id}`);
  await page.waitForFunction(() => [...document.querySelectorAll('.previews img')].some((img) => img.complete && img.naturalWidth > 0), null, { timeout: jobTimeout }).catch(() => {});
  const width = await page.evaluate(() => Math.max(0, ...[...document.querySelectorAll('.previews img')].map((img) => img.naturalWidth)));
  expect('a decoded preview, without a reload', width > 0, { width, status: await page.locator('.job-status').innerText() });
  await shoot(page, 'job-live');
  await page.waitForFunction((ended) => ended.includes(document.querySelector('.job-status')?.getAttribute('data-status')), ENDED, { timeout: jobTimeout }).catch(() => {});
  const status = await page.locator('.job-status').getAttribute('data-status');
  expect('the page to say that the job succeeded', status === 'succeeded', { status, error: (await getJson(page, `/v1/jobs/${id}`)).error?.message });
  await checkPreviews(page, id, 'at the end');
  await page.reload();
  await page.locator('.previews img').first().waitFor({ timeout: 10_000 });
  await checkPreviews(page, id, 'after a reload');
  return id;
}

async function signIn(page) {
  if (!process.env.SAFELIGHT_TOKEN) return;
  await page.getByLabel('Token', { exact: true }).fill(process.env.SAFELIGHT_TOKEN);
  await page.getByRole('button', { name: 'Sign in' }).click();
  await page.locator('.topbar').waitFor({ state: 'visible' });
}

async function main() {
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: FLAGS });
  const errors = [];
  try {
    const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, colorScheme: 'dark' });
    const page = await context.newPage();
    page.on('pageerror', (error) => errors.push(error.message));
    await page.goto(base);
    await signIn(page);
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

    const phone = await browser.newContext({ viewport: { width: 390, height: 844 }, colorScheme: 'light', storageState: await context.storageState() });
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
  } finally {
    await browser.close();
  }
}

if (!base) {
  console.error('usage: node e2e/form-to-preview.mjs BASE_URL [SCREENSHOT_DIR]');
  process.exit(2);
}
main().then(
  () => console.log('form-to-preview: all held'),
  (error) => {
    console.error(`form-to-preview: ${error.message.split('\n')[0]}`);
    process.exit(1);
  },
);
