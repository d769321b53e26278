// A matrix of pictures on a job's page: node e2e/matrix.mjs BASE_URL JOB [SCREENSHOT_DIR]
//
// Needs a running server with an ended sampling job of 2 prompts, 2 checkpoints of one run (steps 10 and 20) and weights 0.5 and 1, all
// of whose pictures but the last were made, and last one of step 10 at weight 2 that the job has no more.
import { checkAxe, checkPreviews, enter, expect, run, screenshotsTo } from './common.mjs';

const [base, id, folder] = process.argv.slice(2);
const shoot = screenshotsTo(folder);

async function looks(page, width) {
  await page.goto(`${base}/jobs/${id}`);
  await page.locator('.matrix img').first().waitFor();
  const told = await page.evaluate(() => ({
    columns: [...document.querySelectorAll('.matrix-checkpoint')].map((head) => [head.textContent, head.colSpan, head.title]),
    weights: [...document.querySelectorAll('.matrix-weight')].map((head) => head.textContent),
    rows: [...document.querySelectorAll('.matrix-prompt')].map((head) => head.textContent),
    cells: [...document.querySelectorAll('.matrix tbody tr')].map((row) => [...row.querySelectorAll('td')].map((cell) => cell.querySelector('[data-sample-index]')?.getAttribute('data-sample-index') ?? cell.textContent)),
  }));
  expect('columns by checkpoint', JSON.stringify(told.columns) === JSON.stringify([['step 10', 2, 'job:j_x/a_000000010.safetensors'], ['step 20', 2, 'job:j_x/a_000000020.safetensors']]), told.columns);
  expect('and by weight', told.weights.join() === 'weight 0.5,weight 1,weight 0.5,weight 1', told.weights);
  expect('rows by prompt', told.rows.join() === 'a fox,a hen', told.rows);
  expect('every picture in its cell, and what was not made said', JSON.stringify(told.cells) === JSON.stringify([['1', '3', '5', '7'], ['2', '4', '6', 'not madestep 20 × 1']]), told.cells);
  const others = await page.locator('.wall li').allInnerTexts();
  expect('what is no longer in it below', others.length === 1 && /a hen\s+a_000000010 × 2/.test(others[0]), others);
  expect('all of them to be counted', (await page.locator('.tab-count').innerText()) === '8', await page.locator('.tab-count').innerText());
  expect('no charts, where there is nothing to draw', (await page.locator('.tabs a').allInnerTexts()).every((tab) => tab !== 'Charts'));
  await checkPreviews(page, id, 'in the matrix and below');
  await checkAxe(page, `the matrix at ${width} px`);
  await shoot(page, `matrix-${width}`);
}

async function walks(page) {
  const view = () => new URL(page.url()).searchParams.get('view');
  await page.getByRole('button', { name: 'Open a fox, step 10, weight 0.5, full screen' }).click();
  await page.waitForURL(/view=1/);
  const facts = await page.locator('.viewer-facts').innerText();
  expect('its checkpoint and weight beside the picture, no step', facts.includes('a_000000010.safetensors') && /Weight\s+0.5/.test(facts) && !/^Step/m.test(facts), facts);
  await page.keyboard.press('ArrowRight');
  await page.keyboard.press('ArrowRight');
  await page.keyboard.press('ArrowDown');
  await page.waitForURL(/view=6/).catch(() => {});
  expect('arrows to walk columns and prompts', view() === '6', view());
  await page.keyboard.press('ArrowRight');
  expect('and to stop where nothing was made', view() === '6', view());
  await page.keyboard.press('Escape');
  await page.waitForURL((url) => !url.searchParams.has('view'));
}

await run('matrix', base, async (browser) => {
  const errors = [];
  for (const [width, height, colorScheme] of [[1440, 900, 'dark'], [390, 844, 'light']]) {
    const page = await enter(browser, base, errors, { width, height, colorScheme });
    await looks(page, width);
    await walks(page);
    const beyond = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
    expect(`nothing wider than a ${width} px screen`, beyond <= 0, beyond);
  }
  expect('no script error', errors.length === 0, errors);
});
