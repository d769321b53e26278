/** A clip or a sound with the browser's own controls. Nothing is fetched before it is played, but for its still. */
import type { CSSProperties } from 'react';
import type { Sample } from '../api/types';
import { mediumOf, nameOf } from '../lib/media';

interface PlayerProps {
  sample: Sample;
  /** Small clips are shown with their pixels as squares. */
  crisp?: boolean;
  autoPlay?: boolean;
  style?: CSSProperties;
}

export function Player({ sample, crisp = false, autoPlay = false, style }: PlayerProps) {
  const label = `${nameOf(sample)}, step ${sample.step}`;
  const still = sample.thumbnail_url ?? undefined;
  // A new key is a new element: a player that is given another source would go on with the old one's state.
  if (mediumOf(sample) === 'audio') {
    return (
      <div className="player-sound" style={style}>
        {still && <img src={still} alt="" width={sample.width} height={sample.height} />}
        <audio key={sample.url} src={sample.url} controls preload="none" aria-label={label} />
      </div>
    );
  }
  return (
    <video
      key={sample.url}
      src={sample.url}
      poster={still}
      controls
      loop
      muted
      playsInline
      autoPlay={autoPlay}
      preload={autoPlay ? 'auto' : 'none'}
      aria-label={label}
      className={crisp ? 'player-video crisp' : 'player-video'}
      style={{ aspectRatio: `${sample.width || 1} / ${sample.height || 1}`, ...style }}
    />
  );
}
