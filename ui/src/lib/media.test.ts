import { expect, test } from 'vitest';
import type { Sample } from '../api/types';
import { downloadName, framesOf, mediumOf, nameOf, soundOf } from './media';

const old: Sample = {
  index: 1, step: 40, prompt_index: 0, prompt: 'a red fox!', seed: 1, width: 64, height: 64, url: '', thumbnail_url: null, created_at: '',
};
const clip: Sample = { ...old, media: 'video', num_frames: 10, fps: 8, duration_seconds: 1.25 };
const sound: Sample = { ...old, media: 'audio', sample_rate: 44_100, channels: 2, duration_seconds: 75 };

test('a preview that does not say what it is is a picture', () => {
  expect([old, clip, sound, { ...old, media: null }].map(mediumOf)).toEqual(['image', 'video', 'audio', 'image']);
});

test('controls name what they open', () => {
  expect([old, clip, sound].map(nameOf)).toEqual(['a red fox!', 'a red fox!, clip of 1.3 s', 'a red fox!, sound of 1:15']);
  expect([old, clip].map((sample) => nameOf({ ...sample, prompt: '' }))).toEqual(['picture', 'clip of 1.3 s']);
});

test('downloads end as what they are', () => {
  expect([old, clip, sound].map((sample) => downloadName(sample))).toEqual(['a-red-fox--step-40.png', 'a-red-fox--step-40.mp4', 'a-red-fox--step-40.wav']);
  expect(downloadName(clip, 'webp')).toBe('a-red-fox--step-40.webp');
  expect(downloadName({ ...old, prompt: '' })).toBe('preview-step-40.png');
});

test('facts that do not apply are left out', () => {
  expect([old, clip, sound].map(framesOf)).toEqual([null, '10 at 8 fps', null]);
  expect(framesOf({ ...clip, fps: 24_000 / 1001 })).toBe('10 at 23.976 fps');
  expect([old, clip, sound].map(soundOf)).toEqual([null, null, 'stereo, 44.1 kHz']);
  expect(soundOf({ ...sound, channels: 1, sample_rate: 16_000 })).toBe('mono, 16 kHz');
});
