import { ActionIcon, Button, useComputedColorScheme, useMantineColorScheme } from '@mantine/core';
import { useState, type ReactNode } from 'react';
import { Link, useLocation } from 'wouter';
import { moveFocus, useShortcuts } from '../lib/useShortcuts';
import { JobsIcon, ModelsIcon, MoonIcon, PlusIcon, SunIcon, SystemIcon } from './icons';
import { ShortcutsHelp } from './ShortcutsHelp';
import './shell.css';

const PLACES = [
  { href: '/', label: 'Jobs', Icon: JobsIcon, here: (path: string) => path === '/' || path.startsWith('/jobs') },
  { href: '/models', label: 'Models', Icon: ModelsIcon, here: (path: string) => path.startsWith('/models') },
  { href: '/system', label: 'System', Icon: SystemIcon, here: (path: string) => path.startsWith('/system') },
];

function SchemeToggle() {
  const { setColorScheme } = useMantineColorScheme();
  const scheme = useComputedColorScheme('dark', { getInitialValueInEffect: false });
  const other = scheme === 'dark' ? 'light' : 'dark';
  return (
    <ActionIcon variant="subtle" color="gray" c="dimmed" size={36} onClick={() => setColorScheme(other)} aria-label={`Switch to ${other} colours`}>
      {scheme === 'dark' ? <SunIcon /> : <MoonIcon />}
    </ActionIcon>
  );
}

export function Shell({ children }: { children: ReactNode }) {
  const [path, navigate] = useLocation();
  const [helpOpen, setHelpOpen] = useState(false);
  useShortcuts({
    n: () => navigate('/new'),
    '/': () => {
      const search = document.querySelector<HTMLInputElement>('input[type="search"]');
      if (search) search.focus();
      else navigate('/');
    },
    j: () => moveFocus(1),
    k: () => moveFocus(-1),
    '?': () => setHelpOpen(true),
    Escape: () => {
      if (path === '/') return;
      // A page opened from outside has no list behind it.
      if (window.history.length > 1) window.history.back();
      else navigate('/');
    },
  });
  return (
    <div className="shell">
      <a className="skip" href="#main">Skip to the page</a>
      <header className="topbar">
        <Link href="/" className="brand" aria-label="Safelight, to the list of jobs">
          <span className="lamp" aria-hidden="true" />
          Safelight
        </Link>
        <nav className="places" aria-label="Pages">
          {PLACES.map(({ href, label, Icon, here }) => (
            <Link key={href} href={href} aria-current={here(path) ? 'page' : undefined}>
              <Icon />
              <span>{label}</span>
            </Link>
          ))}
        </nav>
        <div className="row topbar-end">
          <ActionIcon variant="subtle" color="gray" c="dimmed" size={36} className="help-button" onClick={() => setHelpOpen(true)} aria-label="Keyboard shortcuts">
            ?
          </ActionIcon>
          <SchemeToggle />
          {path !== '/new' && (
            <Button component={Link} href="/new" leftSection={<PlusIcon size={16} />} className="new-job" aria-label="New job">
              <span className="new-job-word">New job</span>
            </Button>
          )}
        </div>
      </header>
      <main id="main" tabIndex={-1}>{children}</main>
      <ShortcutsHelp opened={helpOpen} onClose={() => setHelpOpen(false)} />
    </div>
  );
}
