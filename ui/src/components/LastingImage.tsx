import { useEffect, useState, type ImgHTMLAttributes } from 'react';

const FIRST_WAIT_MS = 1000;
const LONGEST_WAIT_MS = 15_000;

/** An <img> that asks again when its picture did not come (a server that was restarting), and shows no broken frame meanwhile. */
export function LastingImage({ src, style, ...rest }: ImgHTMLAttributes<HTMLImageElement>) {
  const [tries, setTries] = useState(0);
  const [failed, setFailed] = useState(false);
  useEffect(() => {
    setTries(0);
    setFailed(false);
  }, [src]);
  useEffect(() => {
    if (!failed) return;
    const timer = setTimeout(() => {
      setTries((before) => before + 1);
      setFailed(false);
    }, Math.min(FIRST_WAIT_MS * 2 ** tries, LONGEST_WAIT_MS));
    return () => clearTimeout(timer);
  }, [failed, tries]);
  // A new key is a new element, and a new element is a new request.
  return <img key={tries} src={src} style={failed ? { ...style, visibility: 'hidden' } : style} onError={() => setFailed(true)} {...rest} />;
}
