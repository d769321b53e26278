import { NativeSelect } from '@mantine/core';
import { Link, useLocation } from 'wouter';
import type { Arch, Job, Preset } from '../../api/types';
import { plural } from '../../lib/format';

interface PickerProps {
  archs: Arch[];
  arch: Arch;
  presets: Preset[];
  preset: Preset | null;
  copiedFrom: Job | null;
  onPreset: (name: string) => void;
}

/** Where the job starts from. */
export function Picker({ archs, arch, presets, preset, copiedFrom, onPreset }: PickerProps) {
  const [, navigate] = useLocation();
  const broken = archs.filter((one) => one.broken !== null);
  return (
    <section className="picker" aria-label="Start from">
      {copiedFrom && (
        <p className="picker-from">A copy of <Link className="link" href={`/jobs/${copiedFrom.id}`}>{copiedFrom.name}</Link>. Dots mark what you change.</p>
      )}
      <div className="picker-arch">
        <NativeSelect
          label="Architecture"
          value={arch.arch}
          // Its presets are others, so the choice starts anew.
          onChange={(event) => navigate(`/new?arch=${encodeURIComponent(event.currentTarget.value)}`)}
          data={archs.map((one) => ({ value: one.arch, label: one.broken ? `${one.label}: did not load` : one.label, disabled: one.broken !== null }))}
        />
        <div>
          {arch.description && <p className="dim small">{arch.description}</p>}
          {broken.length > 0 && <p className="small"><Link className="link" href="/models">{plural(broken.length, 'model')} did not load</Link></p>}
        </div>
      </div>
      {!copiedFrom && (
        <fieldset className="presets">
          <legend>Preset</legend>
          {presets.map((one) => (
            <label key={one.name} className="preset" data-chosen={one.name === preset?.name || undefined}>
              <input type="radio" name="preset" value={one.name} checked={one.name === preset?.name} onChange={() => onPreset(one.name)} />
              <span>
                <strong>{one.label}</strong>
                <span className="dim small">{one.description}</span>
              </span>
            </label>
          ))}
        </fieldset>
      )}
    </section>
  );
}
