/** What a preview is besides its size: a picture, a clip or a sound. Previews made before there were clips do not say: pictures. */
import type { Sample } from '../api/types';
import { formatLength } from './format';

export type Medium = NonNullable<Sample['media']>;

export const mediumOf = (sample: Pick<Sample, 'media'>): Medium => sample.media ?? 'image';

export const NOUN: Record<Medium, string> = { image: 'picture', video: 'clip', audio: 'sound' };

const EXTENSION: Record<Medium, string> = { image: 'png', video: 'mp4', audio: 'wav' };

/** How a control names a preview: "a red fox", "a red fox, clip of 1.3 s". */
export function nameOf(sample: Sample): string {
  const medium = mediumOf(sample);
  if (medium === 'image') return sample.prompt || 'picture';
  const what = `${NOUN[medium]} of ${formatLength(sample.duration_seconds ?? 0)}`;
  return sample.prompt ? `${sample.prompt}, ${what}` : what;
}

/** The file name of a download: "a-red-fox-step-40.mp4". */
export function downloadName(sample: Sample, extension = EXTENSION[mediumOf(sample)]): string {
  return `${sample.prompt.slice(0, 40).replace(/[^\w-]+/g, '-') || 'preview'}-step-${sample.step}.${extension}`;
}

/** "10 at 8 fps", "2 channels at 44.1 kHz": what a clip or a sound is made of; null where it does not apply. */
export function framesOf(sample: Sample): string | null {
  if (sample.num_frames == null) return null;
  return sample.fps == null ? String(sample.num_frames) : `${sample.num_frames} at ${Number(sample.fps.toFixed(3))} fps`;
}

export function soundOf(sample: Sample): string | null {
  if (sample.sample_rate == null) return null;
  const channels = sample.channels === 1 ? 'mono' : sample.channels === 2 ? 'stereo' : `${sample.channels ?? '?'} channels`;
  return `${channels}, ${sample.sample_rate / 1000} kHz`;
}
