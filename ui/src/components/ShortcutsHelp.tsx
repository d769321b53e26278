import { Kbd, Modal } from '@mantine/core';

const KEYS: [string[], string][] = [
  [['n'], 'New job'],
  [['/'], 'Search'],
  [['j', 'k'], 'Next, previous'],
  [['Enter'], 'Open'],
  [['Esc'], 'Back, or close'],
  [['←', '→'], 'Steps, in the full-screen viewer'],
  [['↑', '↓'], 'Prompts, in the full-screen viewer'],
  [['?'], 'This list'],
];

export function ShortcutsHelp({ opened, onClose }: { opened: boolean; onClose: () => void }) {
  return (
    <Modal opened={opened} onClose={onClose} title="Keyboard" size="sm" closeButtonProps={{ 'aria-label': 'Close' }}>
      <dl style={{ display: 'grid', gridTemplateColumns: 'max-content 1fr', gap: '8px 24px', margin: 0 }}>
        {KEYS.map(([keys, what]) => (
          <div key={what} style={{ display: 'contents' }}>
            <dt className="row" style={{ gap: 4 }}>{keys.map((key) => <Kbd key={key}>{key}</Kbd>)}</dt>
            <dd style={{ margin: 0 }}>{what}</dd>
          </div>
        ))}
      </dl>
    </Modal>
  );
}
