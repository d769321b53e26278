// The form's own behaviour: node e2e/form.mjs BASE_URL [SCREENSHOT_DIR]
//
// Needs a running server whose first usable model has a preset that trains an adapter, named lora. Nothing is submitted.
import { checkAxe, enter, expect, run, screenshotsTo } from './common.mjs';

const [base, folder] = process.argv.slice(2);
const shoot = screenshotsTo(folder);

const field = (page, pointer) => page.locator(`[data-pointer="${pointer}"]`);
const specOf = async (page) => JSON.parse(await page.locator('.json textarea').inputValue());

async function unfold(page) {
  for (const summary of await page.locator('.form-section > details > summary').all()) await summary.click();
}

async function followers(page) {
  const alpha = field(page, '/network/linear_alpha').locator('input');
  for (const rank of ['4', '16']) {
    await field(page, '/network/linear').locator('input').fill(rank);
    expect('alpha to follow the rank until it is touched', (await alpha.getAttribute('placeholder')) === `${rank}, as Rank` && (await specOf(page)).network.linear_alpha === null);
  }
}

async function wording(page) {
  await field(page, '/train/steps').locator('input').fill('2.5');
  const problem = field(page, '/train/steps').locator('.field-problem');
  await problem.waitFor({ timeout: 10_000 });
  expect('what is wrong in plain words', (await problem.innerText()) === 'must be a whole number, not 2.5', await problem.innerText());
  const line = await page.locator('.findings .bad').first().innerText();
  expect("the plan to name the input by its label", line === 'Steps: must be a whole number, not 2.5', line);
  await field(page, '/train/steps').locator('input').fill('200');
}

async function conditions(page) {
  await field(page, '/network/dropout').locator('input').fill('0.2');
  expect('a value to go into the job', (await specOf(page)).network.dropout === 0.2);
  await field(page, '/network/type').locator('select').selectOption('"lokr"');
  expect('what means nothing beside the new choice to be hidden, and back at its default', (await field(page, '/network/dropout').count()) === 0 && (await specOf(page)).network.dropout === 0);
  expect('what the new choice brings to be there', (await field(page, '/network/lokr_factor').count()) === 1);
  const option = (key) => field(page, `/train/optimizer_params/${key}`);
  expect('an option of another optimizer to be hidden', (await option('momentum').count()) === 0);
  await option('eps').locator('input').fill('1e-7');
  await field(page, '/train/optimizer').locator('input').fill('adam');
  await field(page, '/train/optimizer').locator('input').fill('ada');
  expect('half a name to cost no option', (await specOf(page)).train.optimizer_params.eps === 1e-7);
  await field(page, '/train/optimizer').locator('input').fill('adamw');
  await field(page, '/train/optimizer').locator('input').fill('sgd');
  expect('options to follow the optimizer, which stands beside the object they are in', (await option('eps').count()) === 0 && (await option('momentum').count()) === 1 && (await specOf(page)).train.optimizer_params.eps === null);
  await field(page, '/train/optimizer').locator('input').fill('adamw');

  // The JSON is the server's to judge: what is typed there stays, and is shown where it can be mended.
  const spec = await specOf(page);
  await page.locator('.json textarea').fill(JSON.stringify({ ...spec, network: { ...spec.network, dropout: 0.3 } }, null, 2));
  await field(page, '/network/dropout').locator('.field-problem').waitFor({ timeout: 10_000 });
  await page.locator('.json textarea').fill(JSON.stringify(spec, null, 2));
}

async function values(page) {
  const rank = field(page, '/network/conv').locator('input');
  await rank.fill('8');
  expect('a number that may be missing to be a number', (await specOf(page)).network.conv === 8);
  await rank.fill('');
  expect('and to be null when it is cleared', (await specOf(page)).network.conv === null);

  const caption = field(page, '/datasets/0/default_caption');
  await caption.getByRole('button', { name: 'Set to an empty text' }).click();
  expect('a text that may be null to be empty as well', (await specOf(page)).datasets[0].default_caption === '');
  await caption.getByRole('button', { name: 'Unset' }).click();
  expect('and to be null again', (await specOf(page)).datasets[0].default_caption === null);

  const optimizer = field(page, '/train/optimizer').locator('input');
  await optimizer.fill('prod');
  const offered = page.getByRole('option', { name: 'prodigy' });
  await offered.waitFor();
  expect('only what fits to be offered', (await page.locator('[role="option"]:visible').count()) === 1);
  await offered.click();
  expect('what was offered to be taken', (await specOf(page)).train.optimizer === 'prodigy');
  await optimizer.fill('my_package:Mine');
  expect('any other text to go as well', (await specOf(page)).train.optimizer === 'my_package:Mine');

  const free = field(page, '/train/optimizer_kwargs').locator('textarea');
  await free.fill('{"a": ');
  expect('half-written JSON to be told at its field', /Not JSON yet/.test(await field(page, '/train/optimizer_kwargs').innerText()));
  await free.fill('{"a": 1}');
  expect('and to go into the job when it is whole', JSON.stringify((await specOf(page)).train.optimizer_kwargs) === '{"a":1}');
}

async function parts(page) {
  expect('an optional part to be off', (await specOf(page)).validation === null && (await field(page, '/validation/every').count()) === 0);
  // The switch itself lies under its track.
  await field(page, '/validation').locator('input').press('Space');
  await field(page, '/validation/every').waitFor();
  await field(page, '/validation/dataset').locator('input').press('Space');
  const own = field(page, '/validation/dataset/folder_path').locator('input');
  await own.waitFor();
  expect('a part in a part to show its inputs at once', await own.isVisible());
  await own.fill('elsewhere');
  expect('and to be in the job', (await specOf(page)).validation.dataset.folder_path === 'elsewhere');
  await page.evaluate(() => window.scrollTo(0, 0)); // what has scrolled half under the bar at the top counts as too small
  await checkAxe(page, 'the form with everything open');
  await shoot(page, 'form-parts');
  await field(page, '/validation').locator('input').press('Space');
  expect('off to be null again', (await specOf(page)).validation === null);
}

async function brokenModels(page) {
  await page.route('**/v1/archs', async (route) => {
    const answer = await (await route.fetch()).json();
    await route.fulfill({ json: { archs: [...answer.archs, { ...answer.archs[0], arch: 'torn', label: 'Torn', broken: 'ImportError: no module' }] } });
  });
  await page.reload();
  await page.locator('.json textarea').waitFor();
  const option = page.locator('.picker-arch option', { hasText: 'Torn' });
  expect('a model that did not load to be marked, and not to be chosen', (await option.textContent()) === 'Torn: did not load' && (await option.isDisabled()));
  expect('with the way to its reason', await page.locator('.picker-arch a[href="/models"]').isVisible());
}

async function memory(page) {
  let asked = 0;
  await page.route('**/v1/jobs/validate', async (route) => {
    const plan = await (await route.fetch()).json();
    asked += 1;
    const known = { peak: 3 * 2 ** 30, phase: 'training', parts: { weights: 2 * 2 ** 30, activations: 2 ** 30 }, phases: {}, trained_parameters: 1234, disk: { checkpoint: 1e6, checkpoints: 4e6 }, device: 'cpu', notes: [] };
    const later = asked < 2 ? { memory: null, not_checked: ['memory: being worked out; ask again'] } : { memory: known, not_checked: [] };
    await route.fulfill({ json: { ...plan, ok: true, problems: [], ...later } });
  });
  await page.reload();
  await page.locator('.memory .skeleton').waitFor({ timeout: 10_000 });
  expect('memory to say that it is being worked out', /being worked out/.test(await page.locator('.memory').innerText()));
  const bar = page.locator('.memory-bar[role="img"]');
  await bar.waitFor({ timeout: 10_000 });
  expect('the plan to be asked for again by itself', asked >= 2, asked);
  const label = await bar.getAttribute('aria-label');
  expect('memory by part', label.includes('3.0 GiB') && label.includes('weights 2.0 GiB, activations 1.0 GiB'), label);
  const facts = await page.locator('.plan-facts').innerText();
  expect('trained parameters and disk', facts.includes('1,234') && facts.includes('4.0 MB') && !facts.includes('1.0 MB'), facts);
  await checkAxe(page, 'the plan with memory');
  await shoot(page, 'form-memory');
}

await run('form', base, async (browser) => {
  const errors = [];
  const page = await enter(browser, base, errors);
  await page.goto(`${base}/new?preset=lora`);
  await page.locator('.json textarea').waitFor();
  await unfold(page);
  await followers(page);
  await wording(page);
  await conditions(page);
  await values(page);
  await parts(page);
  await brokenModels(page);
  await memory(page);
  expect('no script error', errors.length === 0, errors);
});
