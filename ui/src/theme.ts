/** Mantine's theme on top of our own colours (base.css holds them, once for dark and once for light). */
import { createTheme, type CSSVariablesResolver, type MantineColorsTuple } from '@mantine/core';

const amber: MantineColorsTuple = ['#fff6e0', '#ffe9b8', '#ffdb8a', '#ffcc5c', '#fbbb3c', '#f5a524', '#d98a0f', '#ab6a05', '#7d4c00', '#5c3700'];
const dark: MantineColorsTuple = ['#e9e6e1', '#c9c5be', '#a39e96', '#6f6b66', '#2c2b2f', '#232226', '#18171a', '#0c0b0d', '#080809', '#040405'];

export const theme = createTheme({
  colors: { amber, dark },
  primaryColor: 'amber',
  primaryShade: 5,
  autoContrast: true,
  luminanceThreshold: 0.35,
  black: '#1b1917',
  defaultRadius: 'sm',
  radius: { xs: '3px', sm: '6px', md: '8px', lg: '12px', xl: '16px' },
  fontFamily: 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, "Noto Sans", sans-serif',
  fontFamilyMonospace: 'ui-monospace, "SF Mono", Menlo, Consolas, "Liberation Mono", monospace',
  headings: { fontWeight: '600' },
  cursorType: 'pointer',
  respectReducedMotion: true,
});

const shared = {
  '--mantine-color-body': 'var(--bg)',
  '--mantine-color-text': 'var(--ink)',
  '--mantine-color-bright': 'var(--ink)',
  '--mantine-color-dimmed': 'var(--ink-2)',
  '--mantine-color-placeholder': 'var(--ink-3)',
  '--mantine-color-default': 'var(--field)',
  '--mantine-color-default-hover': 'var(--hover)',
  '--mantine-color-default-color': 'var(--ink)',
  '--mantine-color-default-border': 'var(--line-2)',
  '--mantine-color-error': 'var(--bad)',
  '--mantine-color-anchor': 'var(--accent-ink)',
};

export const cssVariables: CSSVariablesResolver = () => ({ variables: {}, dark: shared, light: shared });
