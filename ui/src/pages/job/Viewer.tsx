/** One picture, clip or sound, as large as the screen. Arrows walk what the page shows: left and right the steps (or columns), up and
 * down the prompts. */
import { ActionIcon, Button, Modal } from '@mantine/core';
import { useElementSize } from '@mantine/hooks';
import { useEffect, useMemo } from 'react';
import type { Sample } from '../../api/types';
import { CloseIcon, DownIcon, DownloadIcon, LeftIcon, RightIcon, UpIcon } from '../../components/icons';
import { LastingImage } from '../../components/LastingImage';
import { Player } from '../../components/Player';
import { formatCount, formatExact, formatLength, formatValue } from '../../lib/format';
import { downloadName, framesOf, mediumOf, soundOf } from '../../lib/media';
import { neighbour, type Direction, type Grid } from './grid';
import { shownWidth } from './size';

interface ViewerProps {
  grid: Grid;
  /** Of the job: a training job's pictures have steps. */
  kind: string;
  sample: Sample;
  onShow: (sample: Sample) => void;
  onClose: () => void;
}

const KEYS: Record<string, Direction> = { ArrowLeft: 'left', ArrowRight: 'right', ArrowUp: 'up', ArrowDown: 'down' };
const ICONS: [Direction, typeof LeftIcon][] = [['left', LeftIcon], ['right', RightIcon], ['up', UpIcon], ['down', DownIcon]];
const OF_STEPS: Record<Direction, string> = { left: 'Earlier step', right: 'Later step', up: 'Previous prompt', down: 'Next prompt' };
const OF_PICTURES: Record<Direction, string> = { left: 'Picture to the left', right: 'Picture to the right', up: 'Previous prompt', down: 'Next prompt' };

export function Viewer({ grid, kind, sample, onShow, onClose }: ViewerProps) {
  const { ref, width, height } = useElementSize<HTMLDivElement>();
  const next = useMemo(
    () => Object.fromEntries(ICONS.map(([direction]) => [direction, neighbour(grid, sample, direction)])) as Record<Direction, Sample | undefined>,
    [grid, sample],
  );
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      const direction = KEYS[event.key];
      if (!direction || event.target instanceof HTMLMediaElement) return; // a player's arrows seek and change its volume
      event.preventDefault();
      const target = next[direction];
      if (target) onShow(target);
    };
    window.addEventListener('keydown', onKey);
    return () => window.removeEventListener('keydown', onKey);
  }, [next, onShow]);
  // The neighbours are fetched ahead, so that holding an arrow key reads like a film.
  useEffect(() => {
    for (const target of Object.values(next)) if (target) new Image().src = mediumOf(target) === 'image' ? target.url : (target.thumbnail_url ?? '');
  }, [next]);

  const labels = kind === 'train' ? OF_STEPS : OF_PICTURES;
  const ratio = (sample.width || 1) / (sample.height || 1);
  const shown = shownWidth(sample.width, Math.min(width, height * ratio));
  const medium = mediumOf(sample);
  const facts: [string, string | null][] = [
    ['Step', kind === 'train' ? formatCount(sample.step) : null],
    ['Checkpoint', sample.checkpoint?.split('/').at(-1) ?? null],
    ['Weight', sample.weight == null ? null : formatValue(sample.weight)],
    ['Seed', sample.seed === null ? null : String(sample.seed)],
    ['Size', medium === 'audio' ? null : `${sample.width} × ${sample.height} px`],
    ['Length', sample.duration_seconds == null ? null : formatLength(sample.duration_seconds)],
    ['Frames', framesOf(sample)],
    ['Sound', soundOf(sample)],
    ['Guidance', sample.guidance_scale == null ? null : String(sample.guidance_scale)],
    ['Sampling steps', sample.sample_steps == null ? null : String(sample.sample_steps)],
    ['Sampler', sample.sampler ?? null],
    ['Adapter strength', sample.network_multiplier == null || sample.network_multiplier === 1 ? null : formatValue(sample.network_multiplier)],
    ['Negative prompt', sample.neg || null],
    ['Made', formatExact(sample.created_at)],
  ];
  return (
    <Modal.Root opened onClose={onClose} fullScreen padding={0} transitionProps={{ duration: 0 }} classNames={{ body: 'viewer', content: 'viewer-content' }}>
      <Modal.Content aria-label={`Preview: ${sample.prompt || 'no prompt'}, step ${sample.step}`}>
      <Modal.Body>
      <div className="viewer-space" ref={ref}>
        {width > 0 && medium === 'video' && (
          <Player
            sample={sample}
            crisp={shown >= 4 * sample.width}
            autoPlay={!window.matchMedia('(prefers-reduced-motion: reduce)').matches}
            style={{ width: shown, height: shown / ratio }}
          />
        )}
        {width > 0 && medium === 'audio' && <Player sample={sample} style={{ width: Math.min(width, 640) }} />}
        {width > 0 && medium === 'image' && (
          <LastingImage
            src={sample.url}
            alt={`${sample.prompt || 'No prompt'}, step ${sample.step}`}
            className={shown >= 4 * sample.width ? 'crisp' : undefined}
            style={{ width: shown, height: shown / ratio }}
          />
        )}
      </div>
      <div className="viewer-panel">
        <div className="viewer-top">
          <p className="viewer-prompt">{sample.prompt || 'No prompt'}</p>
          <ActionIcon variant="default" size={36} aria-label="Close" onClick={onClose} data-autofocus><CloseIcon /></ActionIcon>
        </div>
        <dl className="viewer-facts">
          {facts.map(([name, value]) => value !== null && <div key={name}><dt>{name}</dt><dd>{value}</dd></div>)}
        </dl>
        <div className="row viewer-actions">
          {ICONS.map(([direction, Icon]) => (
            <ActionIcon key={direction} variant="default" size={36} disabled={!next[direction]} aria-label={labels[direction]} onClick={() => next[direction] && onShow(next[direction])}>
              <Icon />
            </ActionIcon>
          ))}
          <Button component="a" href={sample.url} download={downloadName(sample)} variant="default" leftSection={<DownloadIcon size={16} />}>Download</Button>
          {sample.animation_url && <Button component="a" href={sample.animation_url} download={downloadName(sample, 'webp')} variant="default" leftSection={<DownloadIcon size={16} />}>WebP</Button>}
        </div>
      </div>
      </Modal.Body>
      </Modal.Content>
    </Modal.Root>
  );
}
