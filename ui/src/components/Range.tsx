import type { CSSProperties, InputHTMLAttributes } from 'react';

interface RangeProps extends Omit<InputHTMLAttributes<HTMLInputElement>, 'type' | 'value' | 'min' | 'max'> {
  value: number;
  min: number;
  max: number;
}

/** The browser's own slider (keyboard and screen readers know it), with its filled part told to the style sheet. */
export function Range({ value, min, max, style, ...rest }: RangeProps) {
  const fill = max > min ? (100 * (value - min)) / (max - min) : 100;
  return <input type="range" value={value} min={min} max={max} style={{ ...style, '--fill': `${fill}%` } as CSSProperties} {...rest} />;
}
