/** A finding's suggestion is the value that was meant ("steps"), or advice ("it would fit with ..."), which has words. */
import type { Finding } from '../api/types';

export const isAdvice = (suggestion: string | null | undefined): suggestion is string => suggestion != null && suggestion.includes(' ');

/** What is wrong, with advice if there is some. */
export const withAdvice = ({ message, suggestion }: Finding): string => (isAdvice(suggestion) ? `${message}; ${suggestion}` : message);

/** The same with the value that was meant. */
export const inWords = (finding: Finding): string => (finding.suggestion && !isAdvice(finding.suggestion) ? `${finding.message}. Did you mean ${finding.suggestion}?` : withAdvice(finding));
