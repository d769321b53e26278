import { Link } from 'wouter';
import type { Job } from '../../api/types';
import { statusSentence } from '../../lib/status';

/** Which job goes on, and what holds for its changes. */
export function GoesOn({ job }: { job: Job }) {
  return (
    <section className="picker" aria-label="Goes on from">
      <p className="picker-from">
        <Link className="link" href={`/jobs/${job.id}`}>{job.name}</Link>: {statusSentence(job)}. Change what you like; the plan says what each change does from here on. What is made stays.
      </p>
    </section>
  );
}
