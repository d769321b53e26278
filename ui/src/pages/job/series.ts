/** Numbers for the charts. */

/** Exponential moving average without the start's pull towards zero (as Adam's bias correction); holes stay holes. */
export function smooth(values: readonly (number | null)[], weight: number): (number | null)[] {
  let average = 0;
  let total = 0;
  return values.map((value) => {
    if (value === null) return null;
    average = weight * average + (1 - weight) * value;
    total = weight * total + (1 - weight);
    return average / total;
  });
}

/** A log axis has no place for zero or less. */
export const onlyPositive = (values: readonly (number | null)[]): (number | null)[] => values.map((value) => (value !== null && value > 0 ? value : null));
