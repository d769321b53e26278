/** Around every input: its name, the dot that tells it apart from the preset, its help and its findings. */
import type { FieldTemplateProps, FormContextType, RJSFSchema } from '@rjsf/utils';
import { isAdvice, offerOf, withAdvice } from '../lib/findings';
import { formatJson } from '../lib/format';
import { useEffect } from 'react';
import { POINTER, useField } from './context';

export function FieldTemplate({ id, schema, children }: FieldTemplateProps<unknown, RJSFSchema, FormContextType>) {
  const { fact, reset, removeItem, apply } = useField();
  const isField = POINTER in schema; // else it is the object around the field
  // Mantine's inputs know only descriptions that they draw themselves and drop any other aria-describedby.
  useEffect(() => {
    if (isField) document.getElementById(id)?.setAttribute('aria-describedby', `${id}-help`);
  });
  if (!fact || !isField) return children;
  const { leaf, label, changed, presetValue, problems, warnings } = fact;
  const wide = leaf.widget === 'textarea' || leaf.widget === 'path';
  return (
    <div className={`field${wide ? ' field-wide' : ''}`} data-invalid={problems.length > 0 || undefined} data-pointer={leaf.pointer}>
      <div className="field-head">
        <label htmlFor={id} id={`${id}-label`}>{label}</label>
        {changed && (
          <button type="button" className="field-dot" onClick={() => reset(leaf)} title={`Changed. Back to ${formatJson(presetValue)}`} aria-label={`Reset ${label} to ${formatJson(presetValue)}`}>
            <span aria-hidden="true" />
          </button>
        )}
        {fact.removable && <button type="button" className="button-link field-remove" onClick={() => removeItem(leaf)} aria-label={`Remove ${leaf.item?.name ?? ''} ${(leaf.item?.index ?? 0) + 1}`}>Remove</button>}
      </div>
      {children}
      <div id={`${id}-help`}>
        {problems.map((problem) => (
          <p key={problem.message} className="field-problem">
            {withAdvice(problem)}
            {problem.suggestion && !isAdvice(problem.suggestion) && <> {offerOf(problem)} <button type="button" className="button-link" onClick={() => apply(leaf, suggested(leaf.schema.type, problem.suggestion as string))}>{problem.suggestion}</button>{problem.misspelt ? '?' : '.'}</>}
          </p>
        ))}
        {problems.length === 0 && warnings.map((warning) => <p key={warning.message} className="field-warning">{withAdvice(warning)}</p>)}
        {/* Said once for a list: the same line under every prompt is noise. */}
        {leaf.help && !(leaf.item && leaf.item.index > 0 && leaf.basic) && <p className="field-help">{leaf.help}</p>}
      </div>
    </div>
  );
}

/** A suggestion comes as text; a number field takes it as a number. */
function suggested(type: unknown, text: string): string | number {
  return (type === 'number' || type === 'integer') && text.trim() !== '' && Number.isFinite(Number(text)) ? Number(text) : text;
}
