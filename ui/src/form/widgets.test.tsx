import { MantineProvider } from '@mantine/core';
import { act, useState } from 'react';
import { createRoot, type Root } from 'react-dom/client';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import type { JsonObject } from '../api/types';
import type { FieldFacts } from './context';
import { toLayout } from './leaves';
import { SectionForm } from './SectionForm';

const text = (more: JsonObject): JsonObject => ({ anyOf: [{ type: 'string', ...more }, { type: 'null' }], default: null, title: 'Text', ui: { section: 'What', order: 1 } });
const schema: JsonObject = {
  type: 'object',
  properties: { caption: text({ maxLength: 9 }), long: { ...text({}), ui: { section: 'What', order: 2, widget: 'textarea' } }, path: text({ minLength: 1 }), plain: { type: 'string', default: '', title: 'Plain', ui: { section: 'What', order: 3 } } },
};

let root: Root;
let spec: JsonObject;
const actions = { reset: () => undefined, removeItem: () => undefined, apply: () => undefined };

function Form({ start }: { start: JsonObject }) {
  const [now, setNow] = useState(start);
  spec = now;
  const { leaves } = toLayout(schema, now);
  const facts = new Map<string, FieldFacts>(leaves.map((leaf) => [leaf.pointer, { leaf, label: leaf.title, presetValue: null, changed: false, problems: [], warnings: [], removable: false }]));
  return <SectionForm leaves={leaves} spec={now} facts={facts} actions={actions} onChange={(leaf, value) => setNow((before) => ({ ...before, [leaf.pointer.slice(1)]: value as never }))} />;
}

const show = (start: JsonObject) => act(async () => root.render(<MantineProvider env="test" forceColorScheme="light"><Form start={start} /></MantineProvider>));
const field = (name: string) => document.querySelector(`[data-pointer="/${name}"]`) as HTMLElement;
const input = (name: string) => field(name).querySelector('input, textarea') as HTMLInputElement;
const button = (name: string) => field(name).querySelector<HTMLButtonElement>('.field-empty');
const press = (name: string) => act(async () => button(name)?.click());
const type = (name: string, typed: string) =>
  act(async () => {
    const element = input(name);
    // React hears of a value only through the element's own setter.
    Object.getOwnPropertyDescriptor(Object.getPrototypeOf(element), 'value')?.set?.call(element, typed);
    element.dispatchEvent(new Event('input', { bubbles: true }));
  });

beforeEach(() => {
  vi.stubGlobal('IS_REACT_ACT_ENVIRONMENT', true);
  vi.stubGlobal('matchMedia', () => ({ matches: false, addEventListener: () => undefined, removeEventListener: () => undefined }));
  Object.defineProperty(document, 'fonts', { value: new EventTarget(), configurable: true }); // jsdom has none
  document.body.innerHTML = '<main></main>';
  root = createRoot(document.querySelector('main') as HTMLElement);
});
afterEach(async () => {
  await act(async () => root.unmount());
  vi.unstubAllGlobals();
});

test.each(['caption', 'long'])('%s, which may be null, can also be the empty text, and says which of them it is', async (name) => {
  await show({ [name]: null });
  expect([input(name).placeholder, button(name)?.textContent]).toEqual(['not set', 'Set to an empty text']);
  await press(name);
  expect(spec[name]).toBe('');
  expect([input(name).placeholder, button(name)?.textContent]).toEqual(['empty text', 'Unset']);
  await press(name);
  expect(spec[name]).toBeNull();
});

test('a text that is there needs no such choice; cleared it is not set', async () => {
  await show({ caption: null });
  await type('caption', 'a dog');
  expect([spec.caption, button('caption')]).toEqual(['a dog', null]);
  await type('caption', '');
  expect([spec.caption, button('caption')?.textContent]).toEqual([null, 'Set to an empty text']);
});

test('an absent text is its default', async () => {
  await show({});
  expect([input('caption').placeholder, button('caption')?.textContent]).toEqual(['not set', 'Set to an empty text']);
});

test('where the empty text is no value, or null is none, there is nothing to choose', async () => {
  await show({ path: null, plain: '' });
  expect([button('path'), button('plain')]).toEqual([null, null]);
  await type('plain', 'a');
  await type('plain', '');
  expect(spec.plain).toBe('');
});
