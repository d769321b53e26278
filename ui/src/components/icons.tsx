/** The few line icons that we use, drawn on a 20 px grid. They are decoration: the control beside them carries the name. */
import type { ReactNode } from 'react';

function icon(paths: ReactNode) {
  return function Icon({ size = 18 }: { size?: number }) {
    return (
      <svg width={size} height={size} viewBox="0 0 20 20" fill="none" stroke="currentColor" strokeWidth={1.6} strokeLinecap="round" strokeLinejoin="round" aria-hidden="true">
        {paths}
      </svg>
    );
  };
}

export const PlusIcon = icon(<path d="M10 4v12M4 10h12" />);
export const JobsIcon = icon(<path d="M3.5 4.5h13v7h-13zM3.5 15.5h13" />);
export const ModelsIcon = icon(<path d="M10 3l6.5 3.5v7L10 17l-6.5-3.5v-7zM3.5 6.5L10 10l6.5-3.5M10 10v7" />);
export const SystemIcon = icon(<path d="M3.5 4h13v5h-13zM3.5 11h13v5h-13zM6.5 6.5h.01M6.5 13.5h.01" />);
export const SunIcon = icon(<path d="M10 6.5a3.5 3.5 0 100 7 3.5 3.5 0 000-7zM10 2v1.5M10 16.5V18M2 10h1.5M16.5 10H18M4.3 4.3l1.1 1.1M14.6 14.6l1.1 1.1M4.3 15.7l1.1-1.1M14.6 5.4l1.1-1.1" />);
export const MoonIcon = icon(<path d="M16 11.5A6.5 6.5 0 018.5 4a6.5 6.5 0 107.5 7.5z" />);
export const UpIcon = icon(<path d="M10 16V4M5 9l5-5 5 5" />);
export const DownIcon = icon(<path d="M10 4v12M5 11l5 5 5-5" />);
export const LeftIcon = icon(<path d="M12.5 4.5L7 10l5.5 5.5" />);
export const RightIcon = icon(<path d="M7.5 4.5L13 10l-5.5 5.5" />);
export const CloseIcon = icon(<path d="M5 5l10 10M15 5L5 15" />);
export const SearchIcon = icon(<path d="M9 3.5a5.5 5.5 0 100 11 5.5 5.5 0 000-11zM13 13l3.5 3.5" />);
export const DownloadIcon = icon(<path d="M10 3v10M5.5 9L10 13.5 14.5 9M4 17h12" />);
export const PlayIcon = icon(<path d="M6 4l9 6-9 6z" fill="currentColor" />);
export const ExpandIcon = icon(<path d="M4 8V4h4M12 4h4v4M16 12v4h-4M8 16H4v-4" />);
export const CheckIcon = icon(<path d="M4.5 10.5l3.5 3.5 7.5-8" />);
export const AlertIcon = icon(<path d="M10 3.5l7 12.5H3zM10 8.5v3M10 13.8h.01" />);
const PinOutline = icon(<path d="M7 3.5h6l-.8 5 2.3 2.8H5.5L7.8 8.5zM10 11.3V17" />);
const PinFilled = icon(<path d="M7 3.5h6l-.8 5 2.3 2.8H5.5L7.8 8.5zM10 11.3V17" fill="currentColor" />);
export const PinIcon = ({ filled, size }: { filled: boolean; size: number }) => (filled ? <PinFilled size={size} /> : <PinOutline size={size} />);
