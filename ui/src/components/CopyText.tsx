import { Button } from '@mantine/core';
import { useEffect, useState } from 'react';
import { copyText } from '../lib/copy';

/** A quiet button that copies and says so. */
export function CopyText({ text, children }: { text: string; children: string }) {
  const [said, setSaid] = useState<string | null>(null);
  useEffect(() => {
    if (!said) return;
    const timer = setTimeout(() => setSaid(null), 1600);
    return () => clearTimeout(timer);
  }, [said]);
  return (
    <Button variant="subtle" color="gray" c="dimmed" size="xs" onClick={() => void copyText(text).then((done) => setSaid(done ? 'Copied' : 'Could not copy'))}>
      <span aria-live="polite">{said ?? children}</span>
    </Button>
  );
}
