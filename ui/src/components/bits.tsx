/** Small parts that most pages use. */
import type { ReactNode } from 'react';
import type { FeedState } from '../api/feed';
import type { Job, Sample } from '../api/types';
import { formatAgo, formatExact, formatLength } from '../lib/format';
import { mediumOf } from '../lib/media';
import { isActive } from '../lib/status';
import { useNow } from '../lib/useNow';
import { PlayIcon } from './icons';
import { LastingImage } from './LastingImage';

/** "3 min ago", with the exact time on hover. */
export function When({ iso }: { iso: string }) {
  const now = useNow();
  return <time dateTime={iso} title={formatExact(iso)}>{formatAgo(iso, now)}</time>;
}

export function ProgressBar({ job, label }: { job: Job; label: string }) {
  const percent = job.total_steps > 0 ? Math.min(100, (100 * job.step) / job.total_steps) : 0;
  const kind = job.status === 'failed' ? ' failed' : isActive(job.status) ? '' : ' still';
  return (
    <div className={`progress${kind}`} role="progressbar" aria-label={label} aria-valuemin={0} aria-valuemax={100} aria-valuenow={Math.round(percent)}>
      <div style={{ width: `${percent}%` }} />
    </div>
  );
}

/** From this enlargement on, pixels are shown as squares: smoothing would only blur what is there. */
export const CRISP_FROM = 4;

/** From this width on, the mark of a clip or a sound has room to say how long it is. */
const LENGTH_FROM = 64;

interface PictureProps {
  sample: Pick<Sample, 'width' | 'height' | 'url' | 'thumbnail_url' | 'prompt' | 'step' | 'media' | 'duration_seconds'>;
  /** The width it is shown at, in CSS pixels; decides between smooth and crisp. */
  shownAt: number;
  full?: boolean;
  alt?: string;
  eager?: boolean;
}

/** A preview in its reserved space. Small pictures come as they are: a thumbnail of 64 pixels helps nobody. Of a clip or a sound the
 *  still is shown, with a mark that says that it plays. */
export function Picture({ sample, shownAt, full = false, alt, eager = false }: PictureProps) {
  const crisp = sample.width > 0 && shownAt / sample.width >= CRISP_FROM;
  const plays = mediumOf(sample) !== 'image';
  const src = plays ? (sample.thumbnail_url ?? undefined) : full || sample.width <= shownAt || !sample.thumbnail_url ? sample.url : sample.thumbnail_url;
  return (
    <div className="picture" style={{ aspectRatio: `${sample.width || 1} / ${sample.height || 1}` }}>
      <LastingImage
        src={src}
        alt={alt ?? `${sample.prompt || 'No prompt'}, step ${sample.step}`}
        width={sample.width}
        height={sample.height}
        className={crisp ? 'crisp' : undefined}
        loading={eager ? 'eager' : 'lazy'}
        decoding="async"
        draggable={false}
      />
      {plays && (
        <span className="play-mark" aria-hidden="true">
          <PlayIcon size={10} />
          {shownAt >= LENGTH_FROM && sample.duration_seconds != null && formatLength(sample.duration_seconds)}
        </span>
      )}
    </div>
  );
}

/** The thin bar while the stream is away; it takes no space, so nothing jumps. */
export function ReconnectBar({ feed }: { feed: FeedState }) {
  return (
    <div className="reconnect" role="status" data-shown={feed === 'reconnecting' || undefined}>
      {feed === 'reconnecting' && 'Reconnecting; nothing is lost'}
    </div>
  );
}

export function Notice({ tone, title, children, action }: { tone?: 'bad'; title: string; children?: ReactNode; action?: ReactNode }) {
  return (
    <div className={`notice${tone ? ` notice-${tone}` : ''}`} role={tone === 'bad' ? 'alert' : undefined}>
      <p className="notice-title">{title}</p>
      {children && <div className="dim">{children}</div>}
      {action && <div style={{ marginTop: 12 }}>{action}</div>}
    </div>
  );
}
