/** The inputs themselves. None refuses what is typed: a text that is no number goes into the job as it is, and the server says at
 * the field what would be right. So nothing typed is ever lost or silently corrected. */
import { Autocomplete, NativeSelect, Switch, Textarea, TextInput, type OptionsFilter } from '@mantine/core';
import type { FieldProps, WidgetProps } from '@rjsf/utils';
import { useEffect, useState } from 'react';
import type { Json } from '../api/types';
import { formatJson } from '../lib/format';
import { sameJson } from '../lib/pointer';
import { parseJson } from './jsonText';
import { useField, type FieldFacts } from './context';

function useFacts(): FieldFacts {
  const { fact } = useField();
  if (!fact) throw new Error('an input without facts');
  return fact;
}

const shared = (id: string, { problems }: FieldFacts) => ({
  id,
  'aria-invalid': problems.length > 0 || undefined,
  error: problems.length > 0,
});

/** The unit stands inside the input, at its end. */
const unitOf = ({ leaf }: FieldFacts) => (leaf.unit ? { rightSection: <span className="field-unit">{leaf.unit}</span>, rightSectionWidth: 24 + 8 * leaf.unit.length, rightSectionPointerEvents: 'none' as const } : {});

const placeholder = ({ leaf, followed }: FieldFacts) => followed ?? (leaf.defaultValue === undefined || leaf.defaultValue === null ? '' : leaf.defaultValue === '' ? 'nothing' : formatJson(leaf.defaultValue));

/** Whether an empty text is a value of its own beside null, which means "not set". */
const takesEmpty = ({ leaf: { nullable, schema } }: FieldFacts) => nullable && schema.type === 'string' && !(typeof schema.minLength === 'number' && schema.minLength > 0);

/** An empty input looks the same for both, so it says which of them it is. */
function emptyWord(facts: FieldFacts, value: Json | undefined): string {
  const now = value === undefined ? facts.leaf.defaultValue : value;
  if (takesEmpty(facts) && now === '') return 'empty text';
  return takesEmpty(facts) && now === null ? 'not set' : placeholder(facts);
}

/** Under an empty input: the way from null to the empty text, and back. Typing and clearing makes it null, as in every other input. */
function EmptyOrUnset({ id, facts, value, onChange }: { id: string; facts: FieldFacts; value: Json | undefined; onChange: (value: Json) => void }) {
  const now = value === undefined ? facts.leaf.defaultValue : value;
  if (!takesEmpty(facts) || (now !== null && now !== '')) return null;
  return (
    <button type="button" className="button-link field-empty" aria-describedby={`${id}-label`} onClick={() => onChange(now === null ? '' : null)}>
      {now === null ? 'Set to an empty text' : 'Unset'}
    </button>
  );
}

/** Keeps what is typed while the value it stands for stays the same ("1e-" on the way to "1e-4"). */
function useTyped(value: Json | undefined, show: (value: Json | undefined) => string, read: (text: string) => Json | undefined): [string, (text: string) => void] {
  const [text, setText] = useState(() => show(value));
  useEffect(() => {
    if (!sameJson(read(text), value)) setText(show(value));
    // eslint-disable-next-line -- only a value from outside may replace what is typed
  }, [value]);
  return [text, setText];
}

const showScalar = (value: Json | undefined) => (value === undefined || value === null ? '' : typeof value === 'object' ? JSON.stringify(value) : String(value));

function readNumber(text: string, nullable: boolean): Json | undefined {
  const trimmed = text.trim();
  if (trimmed === '') return nullable ? null : undefined;
  const number = Number(trimmed);
  return Number.isFinite(number) ? number : text;
}

/** All suggestions while the text is one of them (someone who opens the list wants to see what else there is), else those that fit. */
const offered: OptionsFilter = ({ options, search }) => {
  const needle = search.trim().toLowerCase();
  const known = options.some((option) => 'value' in option && option.value.toLowerCase() === needle);
  return known ? options : options.filter((option) => 'value' in option && option.value.toLowerCase().includes(needle));
};

export function TextWidget({ id, value, onChange }: WidgetProps) {
  const facts = useFacts();
  const { nullable, schema: own } = facts.leaf;
  const numeric = own.type === 'number' || own.type === 'integer';
  const read = (text: string): Json | undefined => (numeric ? readNumber(text, nullable) : text === '' && nullable ? null : text);
  const [text, setText] = useTyped(value as Json | undefined, showScalar, read);
  const props = { ...shared(id, facts), ...unitOf(facts), value: text, placeholder: emptyWord(facts, value as Json | undefined), autoComplete: 'off', spellCheck: false };
  const type = (typed: string) => {
    setText(typed);
    onChange(read(typed));
  };
  // Suggestions are no limits: any other text goes as well.
  if (facts.leaf.suggest.length > 0) return <Autocomplete {...props} data={[...facts.leaf.suggest]} filter={offered} onChange={type} />;
  return (
    <>
      <TextInput {...props} {...(numeric ? { inputMode: 'decimal' as const } : {})} onChange={(event) => type(event.currentTarget.value)} />
      <EmptyOrUnset id={id} facts={facts} value={value as Json | undefined} onChange={onChange} />
    </>
  );
}

export function TextareaWidget({ id, value, onChange }: WidgetProps) {
  const facts = useFacts();
  return (
    <>
      <Textarea
        {...shared(id, facts)}
        autosize
        minRows={1}
        maxRows={8}
        value={showScalar(value as Json)}
        placeholder={emptyWord(facts, value as Json | undefined)}
        onChange={(event) => onChange(event.currentTarget.value === '' && facts.leaf.nullable ? null : event.currentTarget.value)}
      />
      <EmptyOrUnset id={id} facts={facts} value={value as Json | undefined} onChange={onChange} />
    </>
  );
}

const NONE = '\u0000none';

export function SelectWidget({ id, value, onChange }: WidgetProps) {
  const facts = useFacts();
  const { nullable, defaultValue, schema: own } = facts.leaf;
  const options = Array.isArray(own.enum) ? own.enum : own.type === 'boolean' ? [true, false] : [];
  const current = value === undefined ? defaultValue : (value as Json);
  // A value from outside the list (typed in the JSON) is shown as it is rather than as something else.
  const unknown = current !== undefined && current !== null && !options.includes(current as never);
  const data = [
    ...(nullable || current === undefined ? [{ value: NONE, label: '–' }] : []),
    ...options.map((option) => ({ value: JSON.stringify(option), label: typeof option === 'boolean' ? formatJson(option) : String(option) })),
    ...(unknown ? [{ value: JSON.stringify(current), label: formatJson(current) }] : []),
  ];
  return (
    <NativeSelect
      {...shared(id, facts)}
      data={data}
      value={current === undefined || current === null ? NONE : JSON.stringify(current)}
      onChange={(event) => onChange(event.currentTarget.value === NONE ? null : JSON.parse(event.currentTarget.value))}
    />
  );
}

export function CheckboxWidget({ id, value, onChange }: WidgetProps) {
  const facts = useFacts();
  const { error: _error, ...rest } = shared(id, facts);
  const on = value === undefined ? facts.leaf.defaultValue === true : value === true;
  return <Switch {...rest} className="field-switch" checked={on} onChange={(event) => onChange(event.currentTarget.checked)} size="md" />;
}

/** A list of plain values on one line: "512, 768". */
export function ListField({ fieldPathId, formData, onChange }: FieldProps) {
  const facts = useFacts();
  const items = facts.leaf.schema.items as { type?: string } | undefined;
  const numeric = items?.type === 'number' || items?.type === 'integer';
  const read = (text: string): Json => {
    const parts = text.split(',').map((part) => part.trim()).filter((part) => part !== '');
    return numeric ? parts.map((part) => readNumber(part, false) ?? part) : parts;
  };
  const show = (value: Json | undefined) => (Array.isArray(value) ? value.map(showScalar).join(', ') : showScalar(value));
  const [text, setText] = useTyped(formData as Json | undefined, show, read);
  return (
    <TextInput
      {...shared(fieldPathId.$id, facts)}
      {...unitOf(facts)}
      value={text}
      placeholder={placeholder(facts) || 'none'}
      autoComplete="off"
      spellCheck={false}
      onChange={(event) => {
        setText(event.currentTarget.value);
        onChange(read(event.currentTarget.value), fieldPathId.path);
      }}
    />
  );
}

/** Anything that has no input of its own (free objects, unions) is written as JSON. */
export function JsonField({ fieldPathId, formData, onChange }: FieldProps) {
  const facts = useFacts();
  const read = (text: string): Json | undefined => {
    if (text.trim() === '') return facts.leaf.nullable ? null : undefined;
    try {
      return JSON.parse(text) as Json;
    } catch {
      return text;
    }
  };
  const [text, setText] = useTyped(formData as Json | undefined, (value) => (value === undefined || value === null ? '' : typeof value === 'string' ? value : JSON.stringify(value)), read);
  const { mistake } = parseJson(text);
  return (
    <Textarea
      {...shared(fieldPathId.$id, facts)}
      autosize
      minRows={1}
      maxRows={8}
      className="mono"
      value={text}
      placeholder={facts.leaf.defaultValue === undefined ? '' : JSON.stringify(facts.leaf.defaultValue)}
      {...(mistake && text.trim() !== '' ? { error: `Not JSON yet: ${mistake.message}.` } : {})}
      onChange={(event) => {
        setText(event.currentTarget.value);
        onChange(read(event.currentTarget.value), fieldPathId.path);
      }}
    />
  );
}
