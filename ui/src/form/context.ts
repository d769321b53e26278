/** What the parts of the form need to know beyond their own value. */
import { createContext, useContext } from 'react';
import type { Finding, Json } from '../api/types';
import type { Leaf } from './leaves';

export interface FieldFacts {
  leaf: Leaf;
  label: string;
  /** The preset's value; shown on the dot. */
  presetValue: Json | undefined;
  changed: boolean;
  problems: Finding[];
  warnings: Finding[];
  removable: boolean;
  /** What an empty input stands for, where that is another input's value: "16, as Rank". */
  followed?: string | null;
}

export interface FormActions {
  reset: (leaf: Leaf) => void;
  removeItem: (leaf: Leaf) => void;
  apply: (leaf: Leaf, value: Json) => void;
}

export interface FieldValue extends FormActions {
  fact: FieldFacts | undefined;
}

/** How an input's widget and template find its facts. Not rjsf's own formContext, which it compares deeply at every change. */
export const FieldContext = createContext<FieldValue | null>(null);

export function useField(): FieldValue {
  const field = useContext(FieldContext);
  if (!field) throw new Error('useField is only for parts of the form');
  return field;
}

/** The key under which a flat schema carries the pointer of its value in the job. */
export const POINTER = 'x-pointer';
