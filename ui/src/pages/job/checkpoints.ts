/** A job's files as its page shows them. */
import type { JobFile } from '../../api/types';

export interface Checkpoint {
  step: number;
  pinned: boolean;
  /** One, or one for each expert of a model that has several. */
  files: JobFile[];
}

/** Checkpoints by step, the newest first, and what else there is; previews have a tab of their own, and there may be thousands. */
export function toCheckpoints(files: readonly JobFile[]): { checkpoints: Checkpoint[]; others: JobFile[] } {
  const bySteps = new Map<number, Checkpoint>();
  const others: JobFile[] = [];
  for (const file of files) {
    if (file.kind === 'sample' || file.kind === 'thumbnail' || file.kind === 'animation') continue;
    if (file.kind !== 'weights' || file.step === null) {
      others.push(file);
      continue;
    }
    const known = bySteps.get(file.step);
    if (known) {
      known.files.push(file);
      known.pinned ||= file.pinned;
    } else bySteps.set(file.step, { step: file.step, pinned: file.pinned, files: [file] });
  }
  return { checkpoints: [...bySteps.values()].sort((a, b) => b.step - a.step), others };
}
