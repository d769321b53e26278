// Clips and sounds on a job's page: node e2e/media.mjs BASE_URL TRAIN_JOB SAMPLE_JOB [SCREENSHOT_DIR]
//
// Needs a running server with two ended jobs. The training job has one clip with sound and one sound a step, the sampling job a
// picture, a clip and a sound, in that order.
import { checkAxe, checkPreviews, enter, expect, getJson, run, screenshotsTo } from './common.mjs';

const [base, trained, sampled, folder] = process.argv.slice(2);
const screenshot = screenshotsTo(folder);
const shoot = (page, name) => screenshot(page, `${name}-${page.viewportSize().width}`);

/** Plays `video` and moves to its end: both need the server to send pieces of the file. */
async function playsAndSeeks(page, video, seconds) {
  await video.evaluate((element) => element.play());
  await page.waitForFunction((element) => element.currentTime > 0 && element.videoWidth > 0, await video.elementHandle(), { timeout: 10_000 });
  const told = await video.evaluate((element) => ({ muted: element.muted, loop: element.loop, controls: element.controls, inline: element.playsInline, seconds: element.duration }));
  expect('a clip with controls that repeats, muted, in its place', told.muted && told.loop && told.controls && told.inline, told);
  expect(`a clip of ${seconds} s`, Math.abs(told.seconds - seconds) < 0.1, told.seconds);
  await video.evaluate((element) => element.pause());
  const at = await video.evaluate((element, to) => new Promise((done) => {
    element.onseeked = () => done(element.currentTime);
    element.currentTime = to;
  }), seconds * 0.75);
  expect('the clip moves to where it is told', Math.abs(at - seconds * 0.75) < 0.01, at);
}

async function downloads(page, name, wanted) {
  const [download] = await Promise.all([page.waitForEvent('download'), page.getByRole('link', { name, exact: true }).click()]);
  expect(`a download named ${wanted}`, download.suggestedFilename() === wanted, download.suggestedFilename());
}

async function training(page) {
  const { samples } = await getJson(page, `/v1/jobs/${trained}/samples`);
  await page.goto(`${base}/jobs/${trained}`);
  const video = page.locator('.stage video');
  await video.waitFor();
  expect('a still before it is played', new URL(await video.evaluate((element) => element.poster)).search === '?thumbnail=1');
  await checkPreviews(page, trained, 'of clips and sounds');
  const marks = await page.locator('.sheet-cell .play-mark').allInnerTexts();
  expect('a mark with the length on every cell', marks.length === samples.length && marks.every((text) => /^\d+(\.\d)? s$/.test(text.trim())), marks);
  expect('the sheet to ask for stills only', await page.locator('.sheet-cell img').evaluateAll((all) => all.every((img) => img.src.endsWith('?thumbnail=1'))));
  const cells = await page.locator('.sheet-cell').evaluateAll((all) => all.map((cell) => [cell.getBoundingClientRect().width, cell.querySelector('.picture').getBoundingClientRect().width]));
  expect('stills of any shape to stay in their cells', cells.every(([cell, still]) => still <= cell), cells);
  await checkAxe(page, 'the stage with a clip and a sound');
  await playsAndSeeks(page, video, samples[0].duration_seconds);
  await shoot(page, 'media-stage');

  await page.locator('.stage-open').first().click();
  const large = page.locator('.viewer-space video');
  await large.waitFor();
  await page.waitForFunction((element) => element.currentTime > 0, await large.elementHandle(), { timeout: 10_000 });
  expect('the viewer plays by itself', true);
  await checkAxe(page, 'the viewer with a clip');
  await shoot(page, 'media-viewer-clip');
  const { step, index } = samples.at(-2);
  await downloads(page, 'Download', `a-clip-step-${step}.mp4`);
  await downloads(page, 'WebP', `a-clip-step-${step}.webp`);
  const view = () => new URL(page.url()).searchParams.get('view');
  await large.focus();
  await page.keyboard.press('ArrowLeft');
  expect("a player's arrows stay its own", view() === String(index), view());
  await page.getByRole('button', { name: 'Close' }).focus();
  await page.keyboard.press('ArrowDown');
  const sound = page.locator('.viewer-space audio');
  await sound.waitFor();
  await sound.evaluate((element) => { element.muted = true; return element.play(); });
  await page.waitForFunction((element) => element.currentTime > 0, await sound.elementHandle(), { timeout: 10_000 });
  expect('a sound plays', true);
  const wave = await page.locator('.viewer-space img').evaluate((img) => img.decode().then(() => img.naturalWidth));
  expect('its waveform over it', wave === 320, wave);
  await checkAxe(page, 'the viewer with a sound');
  await shoot(page, 'media-viewer-sound');
  await downloads(page, 'Download', `a-sound-step-${step}.wav`);
}

async function sampling(page) {
  await page.goto(`${base}/jobs/${sampled}`);
  await page.locator('.wall .picture img').first().waitFor();
  await checkPreviews(page, sampled, 'of every kind');
  const kinds = await page.locator('.wall li').evaluateAll((all) => all.map((item) => [item.querySelectorAll('.play-mark').length, item.querySelector('img').src.endsWith('?thumbnail=1')].join()));
  expect('marks on what plays, and the picture as it was', kinds.join(' ') === '1,true 1,true 0,false', kinds);
  await checkAxe(page, 'the wall with every kind');
  await shoot(page, 'media-wall');
  await page.goto(base);
  await page.locator('.thumb .play-mark').first().waitFor();
  await checkAxe(page, 'the list of jobs that made clips');
  await shoot(page, 'media-list');
}

await run('media', base, async (browser) => {
  const errors = [];
  for (const [width, height, colorScheme] of [[1440, 900, 'dark'], [390, 844, 'light']]) {
    const page = await enter(browser, base, errors, { width, height, colorScheme, acceptDownloads: true });
    await training(page);
    await sampling(page);
    const beyond = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
    expect(`nothing wider than a ${width} px screen`, beyond <= 0, beyond);
  }
  expect('no script error', errors.length === 0, errors);
});
