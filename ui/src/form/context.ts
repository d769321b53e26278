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
}

export interface FormActions {
  reset: (leaf: Leaf) => void;
  removeItem: (leaf: Leaf) => void;
  apply: (leaf: Leaf, value: Json) => void;
}

export interface Fields extends FormActions {
  facts: Map<string, FieldFacts>;
}

/** How widgets and templates find their facts, by pointer. Not rjsf's own formContext, which it compares deeply at every change. */
export const FieldsContext = createContext<Fields | null>(null);

export function useFields(): Fields {
  const fields = useContext(FieldsContext);
  if (!fields) throw new Error('useFields is only for parts of the form');
  return fields;
}

/** The key under which a flat schema carries the pointer of its value in the job. */
export const POINTER = 'x-pointer';
