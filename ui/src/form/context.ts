/** What the parts of the form need to know beyond their own value. */
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

/** Handed to rjsf as `formContext`; its widgets and templates find their facts by pointer. */
export interface FormContext extends FormActions {
  facts: Map<string, FieldFacts>;
}

/** The key under which a flat schema carries the pointer of its value in the job. */
export const POINTER = 'x-pointer';
