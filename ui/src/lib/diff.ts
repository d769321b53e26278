/** Two texts line by line: what they share, what only one of them has. */

export interface DiffLine {
  kind: 'same' | 'gone' | 'new';
  text: string;
}

/** The shortest such telling (longest common subsequence); where both fit, what is gone stands before what is new. */
export function diffLines(before: readonly string[], after: readonly string[]): DiffLine[] {
  // Texts of this kind differ in a few places: what they share at both ends needs no table.
  let head = 0;
  while (head < before.length && head < after.length && before[head] === after[head]) head += 1;
  let tail = 0;
  while (tail < before.length - head && tail < after.length - head && before[before.length - 1 - tail] === after[after.length - 1 - tail]) tail += 1;
  const a = before.slice(head, before.length - tail);
  const b = after.slice(head, after.length - tail);

  // common[i][j]: how many lines a[i..] and b[j..] have in common, in order.
  const width = b.length + 1;
  const common = new Uint32Array((a.length + 1) * width);
  const at = (i: number, j: number) => common[i * width + j] as number;
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) common[i * width + j] = a[i] === b[j] ? at(i + 1, j + 1) + 1 : Math.max(at(i + 1, j), at(i, j + 1));
  }
  const same = (text: string): DiffLine => ({ kind: 'same', text });
  const middle: DiffLine[] = [];
  for (let i = 0, j = 0; i < a.length || j < b.length; ) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      middle.push(same(a[i] as string));
      i += 1;
      j += 1;
    } else if (i < a.length && (j === b.length || at(i + 1, j) >= at(i, j + 1))) {
      middle.push({ kind: 'gone', text: a[i] as string });
      i += 1;
    } else {
      middle.push({ kind: 'new', text: b[j] as string });
      j += 1;
    }
  }
  return [...before.slice(0, head).map(same), ...middle, ...before.slice(before.length - tail).map(same)];
}

export type Piece = { lines: DiffLine[] } | { skipped: number };

/** The lines that differ with `context` lines around them; what lies between is only counted. */
export function toPieces(lines: readonly DiffLine[], context: number): Piece[] {
  const near = lines.map(() => false);
  lines.forEach(({ kind }, i) => {
    if (kind !== 'same') near.fill(true, Math.max(0, i - context), i + context + 1);
  });
  const pieces: Piece[] = [];
  lines.forEach((line, i) => {
    const last = pieces.at(-1);
    if (near[i]) {
      if (last && 'lines' in last) last.lines.push(line);
      else pieces.push({ lines: [line] });
    } else if (last && 'skipped' in last) last.skipped += 1;
    else pieces.push({ skipped: 1 });
  });
  return pieces;
}
