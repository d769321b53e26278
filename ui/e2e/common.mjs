// What the browser tests share. Every check prints one line; the first that fails ends the run with one line and exit code 1.
import { mkdirSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { chromium } from 'playwright-core';

const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const FLAGS = ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'];
const ENDED = ['succeeded', 'failed', 'canceled'];

export function expect(what, condition, seen) {
  if (!condition) throw new Error(`expected ${what}${seen === undefined ? '' : `; seen: ${JSON.stringify(seen)}`}`);
  console.log(`ok  ${what}`);
}

/** Runs `test` in a browser; needs BASE_URL on the command line. */
export async function run(name, base, test) {
  if (!base) {
    console.error(`usage: node e2e/${name}.mjs BASE_URL`);
    process.exit(2);
  }
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: FLAGS });
  try {
    await test(browser);
    console.log(`${name}: all held`);
  } catch (error) {
    console.error(`${name}: ${error.message.split('\n')[0]}`);
    process.exitCode = 1;
  } finally {
    await browser.close();
  }
}

/** RFC 7396. */
export function merge(target, change) {
  if (change === null || typeof change !== 'object' || Array.isArray(change)) return change;
  const made = target !== null && typeof target === 'object' && !Array.isArray(target) ? { ...target } : {};
  for (const [key, value] of Object.entries(change)) {
    if (value === null) delete made[key];
    else made[key] = merge(made[key], value);
  }
  return made;
}

export const screenshotsTo = (folder) => async (page, name) => {
  if (!folder) return;
  mkdirSync(folder, { recursive: true });
  await page.screenshot({ path: join(folder, `${name}.png`) });
};

export async function checkAxe(page, where) {
  await page.evaluate(AXE); // not a script tag: a strict content policy would refuse that
  const found = await page.evaluate(async () => {
    const { violations } = await window.axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa'] });
    return violations.map(({ id, impact, nodes }) => `${id} (${impact}): ${nodes.slice(0, 2).map(({ target }) => target.join(' ')).join(', ')}`);
  });
  expect(`no accessibility violation on ${where}`, found.length === 0, found);
}

export const getJson = (page, path) => page.evaluate(async (url) => (await fetch(url)).json(), path);

export async function signIn(page) {
  if (!process.env.SAFELIGHT_TOKEN) return;
  await page.getByLabel('Token', { exact: true }).fill(process.env.SAFELIGHT_TOKEN);
  await page.getByRole('button', { name: 'Sign in' }).click();
  await page.locator('.topbar').waitFor({ state: 'visible' });
}

/** The start page in a fresh browser, signed in; what a page throws goes to `errors`. */
export async function enter(browser, base, errors, { width = 1440, height = 900, colorScheme = 'dark', ...more } = {}) {
  const context = await browser.newContext({ viewport: { width, height }, colorScheme, ...more });
  const page = await context.newPage();
  page.on('pageerror', (error) => errors.push(error.message));
  await page.goto(base);
  await signIn(page);
  return page;
}

/** Waits until the page says that the job has ended, and returns how. */
export async function jobEnded(page, timeout) {
  await page.waitForFunction((ended) => ended.includes(document.querySelector('.job-status')?.getAttribute('data-status')), ENDED, { timeout }).catch(() => {});
  return page.locator('.job-status').getAttribute('data-status');
}

/** Every preview that the contact sheet (or the wall) draws, scrolled through from end to end. */
async function previewsOnPage(page) {
  return page.evaluate(async () => {
    const seen = new Set();
    let twice = 0;
    const take = () => {
      const now = [...document.querySelectorAll('[data-sample-index]')].map((cell) => cell.getAttribute('data-sample-index'));
      twice += now.length - new Set(now).size;
      now.forEach((index) => seen.add(index));
    };
    const scroller = document.querySelector('.sheet-scroller');
    for (let x = 0; scroller && x < scroller.scrollWidth; x += scroller.clientWidth) {
      scroller.scrollLeft = x;
      await new Promise((done) => setTimeout(done, 120));
      take();
    }
    take();
    return { indexes: [...seen].map(Number).sort((a, b) => a - b), twice, told: Number(document.querySelector('.previews')?.getAttribute('data-num-samples')) };
  });
}

/** The page's previews are the API's: none missing, none twice, none broken. */
export async function checkPreviews(page, id, when) {
  const { samples } = await getJson(page, `/v1/jobs/${id}/samples`);
  const wanted = samples.map(({ index }) => index);
  expect(`some previews ${when}`, wanted.length > 0);
  await page.waitForFunction((count) => Number(document.querySelector('.previews')?.getAttribute('data-num-samples')) >= count, wanted.length, { timeout: 10_000 }).catch(() => {});
  const { indexes, twice, told } = await previewsOnPage(page);
  expect(`the page holds the ${wanted.length} previews of the API ${when}, each once`, told === wanted.length && twice === 0 && indexes.join() === wanted.join(), { told, twice, indexes, wanted });
  const broken = await page.evaluate(() => [...document.querySelectorAll('.previews img')].filter((img) => img.complete && img.naturalWidth === 0).map((img) => img.src));
  expect(`no broken picture ${when}`, broken.length === 0, broken);
}
