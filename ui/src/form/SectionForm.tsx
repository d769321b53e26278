/** A group of inputs. Each is drawn by rjsf from a schema of its own with one property: a value somewhere in the job, named by its
 * pointer. One form for each input, so that typing draws one input again and not the seventy beside it. */
import { withTheme } from '@rjsf/core';
import { Theme } from '@rjsf/mantine';
import type { ObjectFieldTemplateProps, RJSFSchema, UiSchema } from '@rjsf/utils';
import validator from '@rjsf/validator-ajv8';
import { memo, useMemo } from 'react';
import type { Json, JsonObject } from '../api/types';
import { getAt, sameJson } from '../lib/pointer';
import { FieldContext, POINTER, type FieldFacts, type FormActions } from './context';
import { FieldTemplate } from './FieldTemplate';
import type { Leaf } from './leaves';
import { CheckboxWidget, JsonField, ListField, SelectWidget, TextareaWidget, TextWidget } from './widgets';

const ThemedForm = withTheme(Theme);

const Bare = ({ properties }: ObjectFieldTemplateProps) => properties.map(({ content }) => content);

const TEMPLATES = { FieldTemplate, ObjectFieldTemplate: Bare };
const WIDGETS = { TextWidget, TextareaWidget, SelectWidget, CheckboxWidget };
const FIELDS = { ListField, JsonField };

/** How a value is typed in: everything but a switch and a choice is a text to rjsf, so that it never coerces what was typed. */
function drawn(leaf: Leaf): { schema: RJSFSchema; ui: UiSchema } {
  const { schema } = leaf;
  const base = { title: leaf.title, [POINTER]: leaf.pointer };
  if (leaf.isPart || (schema.type === 'boolean' && !leaf.nullable)) return { schema: { ...base, type: 'boolean' }, ui: {} };
  if (schema.type === 'boolean') return { schema: { ...base, type: 'string' }, ui: { 'ui:widget': 'SelectWidget' } };
  if (Array.isArray(schema.enum)) return { schema: { ...base, type: 'string', enum: schema.enum }, ui: { 'ui:widget': 'SelectWidget' } };
  const items = schema.items as JsonObject | undefined;
  if (schema.type === 'array' && typeof items?.type === 'string' && !['array', 'object'].includes(items.type)) return { schema: { ...base, type: 'string' }, ui: { 'ui:field': 'ListField' } };
  if (schema.type === 'string') return { schema: { ...base, type: 'string' }, ui: leaf.widget === 'textarea' ? { 'ui:widget': 'TextareaWidget' } : {} };
  if (schema.type === 'number' || schema.type === 'integer') return { schema: { ...base, type: 'string' }, ui: {} };
  return { schema: { ...base, type: 'string' }, ui: { 'ui:field': 'JsonField' } };
}

interface FieldProps {
  leaf: Leaf;
  value: Json | undefined;
  fact: FieldFacts | undefined;
  actions: FormActions;
  onChange: (leaf: Leaf, value: Json | undefined) => void;
}

function FieldRender({ leaf, value, fact, actions, onChange }: FieldProps) {
  const { schema, uiSchema } = useMemo(() => {
    const { schema: own, ui } = drawn(leaf);
    return { schema: { type: 'object', properties: { [leaf.pointer]: own } } satisfies RJSFSchema, uiSchema: { [leaf.pointer]: ui } as UiSchema };
  }, [leaf]);
  const fields = useMemo(() => ({ fact, ...actions }), [fact, actions]);
  return (
    <FieldContext value={fields}>
      <ThemedForm
        tagName="div"
        className="field-form"
        idPrefix="field"
        idSeparator=""
        schema={schema}
        uiSchema={uiSchema}
        formData={{ [leaf.pointer]: value }}
        validator={validator}
        // The server is the one judge of a job: its plan says at each field what is wrong.
        noValidate
        noHtml5Validate
        showErrorList={false}
        templates={TEMPLATES}
        widgets={WIDGETS}
        fields={FIELDS}
        experimental_defaultFormStateBehavior={{ emptyObjectFields: 'skipDefaults' }}
        experimental_componentUpdateStrategy="always"
        onChange={({ formData }) => {
          const next = (formData as JsonObject)[leaf.pointer];
          if (!sameJson(next, value)) onChange(leaf, next);
        }}
      >
        {/* a child in place of rjsf's own submit button */}
        <span hidden />
      </ThemedForm>
    </FieldContext>
  );
}

/** Typing in one input leaves the others alone. Leaves and facts are made anew at each change, so they are compared by what they say. */
const Field = memo(
  FieldRender,
  (before, after) => before.actions === after.actions && before.onChange === after.onChange && sameJson(before.value, after.value) && JSON.stringify(before.fact) === JSON.stringify(after.fact),
);

interface SectionFormProps {
  leaves: Leaf[];
  spec: JsonObject;
  facts: Map<string, FieldFacts>;
  actions: FormActions;
  onChange: (leaf: Leaf, value: Json | undefined) => void;
}

export function SectionForm({ leaves, spec, facts, actions, onChange }: SectionFormProps) {
  return (
    <div className="field-grid">
      {leaves.map((leaf) => <Field key={leaf.pointer} leaf={leaf} value={valueOf(leaf, spec)} fact={facts.get(leaf.pointer)} actions={actions} onChange={onChange} />)}
    </div>
  );
}

function valueOf(leaf: Leaf, spec: JsonObject): Json | undefined {
  const value = getAt(spec, leaf.pointer);
  // A part that is absent is its default, which is there unless it is null.
  return leaf.isPart ? (value === undefined ? leaf.defaultValue !== null : value !== null) : value;
}
