/** A finding's suggestion is a known name like the one given ("steps"), a value to use ("992"), or advice, which has words. */
import type { Finding } from '../api/types';

export const isAdvice = (suggestion: string | null | undefined): suggestion is string => suggestion != null && suggestion.includes(' ');

/** What is wrong, with advice if there is some. */
export const withAdvice = ({ message, suggestion }: Finding): string => (isAdvice(suggestion) ? `${message}; ${suggestion}` : message);

/** What stands in front of a suggestion that is no advice. */
export const offerOf = ({ misspelt }: Finding): string => (misspelt ? 'Did you mean' : 'Use');

/** The same in one text. */
export function inWords(finding: Finding): string {
  const { message, suggestion, misspelt } = finding;
  return suggestion && !isAdvice(suggestion) ? `${message}. ${offerOf(finding)} ${suggestion}${misspelt ? '?' : '.'}` : withAdvice(finding);
}
