/** One group of inputs, drawn by rjsf from a flat schema: each property is a value somewhere in the job, named by its pointer. */
import { withTheme } from '@rjsf/core';
import { Theme } from '@rjsf/mantine';
import type { ObjectFieldTemplateProps, RJSFSchema, UiSchema } from '@rjsf/utils';
import validator from '@rjsf/validator-ajv8';
import { memo, useMemo } from 'react';
import type { Json, JsonObject } from '../api/types';
import { getAt, sameJson } from '../lib/pointer';
import { FieldsContext, POINTER, type FieldFacts, type FormActions } from './context';
import { FieldTemplate } from './FieldTemplate';
import type { Leaf } from './leaves';
import { CheckboxWidget, JsonField, ListField, SelectWidget, TextareaWidget, TextWidget } from './widgets';

const ThemedForm = withTheme(Theme);

function FieldGrid({ properties }: ObjectFieldTemplateProps) {
  return <div className="field-grid">{properties.map(({ content }) => content)}</div>;
}

const TEMPLATES = { FieldTemplate, ObjectFieldTemplate: FieldGrid };
const WIDGETS = { TextWidget, TextareaWidget, SelectWidget, CheckboxWidget };
const FIELDS = { ListField, JsonField };

/** How a value is typed in: everything but a switch and a choice is a text to rjsf, so that it never coerces what was typed. */
function drawn(leaf: Leaf): { schema: RJSFSchema; ui: UiSchema } {
  const { schema } = leaf;
  const base = { title: leaf.title, [POINTER]: leaf.pointer };
  if (leaf.isPart || (schema.type === 'boolean' && !leaf.nullable)) return { schema: { ...base, type: 'boolean' }, ui: {} };
  if (Array.isArray(schema.enum)) return { schema: { ...base, type: 'string', enum: schema.enum }, ui: { 'ui:widget': 'SelectWidget' } };
  const items = schema.items as JsonObject | undefined;
  if (schema.type === 'array' && typeof items?.type === 'string' && !['array', 'object'].includes(items.type)) return { schema: { ...base, type: 'string' }, ui: { 'ui:field': 'ListField' } };
  if (schema.type === 'string') return { schema: { ...base, type: 'string' }, ui: leaf.widget === 'textarea' ? { 'ui:widget': 'TextareaWidget' } : {} };
  if (schema.type === 'number' || schema.type === 'integer') return { schema: { ...base, type: 'string' }, ui: {} };
  return { schema: { ...base, type: 'string' }, ui: { 'ui:field': 'JsonField' } };
}

interface SectionFormProps {
  leaves: Leaf[];
  spec: JsonObject;
  facts: Map<string, FieldFacts>;
  actions: FormActions;
  onChange: (leaf: Leaf, value: Json | undefined) => void;
}

function SectionFormRender({ leaves, spec, facts, actions, onChange }: SectionFormProps) {
  const names = leaves.map(({ pointer }) => pointer).join('\n');
  const { schema, uiSchema } = useMemo(() => {
    const made = leaves.map((leaf) => [leaf.pointer, drawn(leaf)] as const);
    return {
      schema: { type: 'object', properties: Object.fromEntries(made.map(([pointer, { schema: one }]) => [pointer, one])) } satisfies RJSFSchema,
      uiSchema: Object.fromEntries(made.map(([pointer, { ui }]) => [pointer, ui])) as UiSchema,
    };
  }, [names]); // eslint-disable-line -- the same pointers under the same schema draw the same inputs
  const values = Object.fromEntries(leaves.map((leaf) => [leaf.pointer, valueOf(leaf, spec)]));
  return (
    <FieldsContext value={{ facts, ...actions }}>
      <ThemedForm
        tagName="div"
        idPrefix="field"
        idSeparator=""
        schema={schema}
        uiSchema={uiSchema}
        formData={values}
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
          for (const leaf of leaves) {
            const next = (formData as JsonObject)[leaf.pointer];
            if (!sameJson(next, values[leaf.pointer])) onChange(leaf, next);
          }
        }}
      >
        {/* a child in place of rjsf's own submit button */}
        <span hidden />
      </ThemedForm>
    </FieldsContext>
  );
}

function valueOf(leaf: Leaf, spec: JsonObject): Json | undefined {
  const value = getAt(spec, leaf.pointer);
  // A part that is absent is its default, which is there unless it is null.
  return leaf.isPart ? (value === undefined ? leaf.defaultValue !== null : value !== null) : value;
}

/** Typing in one section leaves the other sections alone. */
export const SectionForm = memo(SectionFormRender, (before, after) => {
  if (before.leaves.length !== after.leaves.length) return false;
  return after.leaves.every((leaf, i) => {
    const old = before.leaves[i];
    return (
      old?.pointer === leaf.pointer &&
      sameJson(valueOf(leaf, before.spec), valueOf(leaf, after.spec)) &&
      JSON.stringify(before.facts.get(leaf.pointer)) === JSON.stringify(after.facts.get(leaf.pointer))
    );
  });
});
