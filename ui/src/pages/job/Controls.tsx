/** The buttons that the job's state has, each saying what it will do before it is pressed. */
import { Button, Modal, NumberInput, Tooltip } from '@mantine/core';
import { useMutation, useQueryClient } from '@tanstack/react-query';
import { useState } from 'react';
import { useLocation } from 'wouter';
import { api } from '../../api/api';
import { useOpenJob } from '../../api/jobStream';
import { useVerb } from '../../components/useVerb';
import { formatCount } from '../../lib/format';
import { VERBS, type Verb } from '../../lib/status';

export function Controls() {
  const { job } = useOpenJob();
  const client = useQueryClient();
  const [, navigate] = useLocation();
  const verb = useVerb(job);
  const [asking, setAsking] = useState<Verb | null>(null);
  const [steps, setSteps] = useState<number | string>(job.total_steps * 2);
  const close = () => setAsking(null);
  const remove = useMutation({
    mutationFn: () => api.remove(job.id),
    onSuccess: () => {
      void client.invalidateQueries({ queryKey: ['jobs'] });
      navigate('/', { replace: true });
    },
  });

  const longer = asking?.verb === 'resume' && job.status === 'succeeded';
  const press = (item: Verb) => {
    if (item.verb === 'delete' || (item.verb === 'resume' && job.status === 'succeeded')) setAsking(item);
    else verb.run(item.verb);
  };
  // Only training has steps to add; a job of pictures that is done has nothing to go on with.
  const verbs = VERBS[job.status].filter((item) => !(job.status === 'succeeded' && item.verb === 'resume' && job.kind !== 'train'));
  return (
    <div className="controls">
      <div className="row wrap controls-row">
        {verbs.map((item) => (
          <Tooltip key={item.label} label={item.effect} multiline w={240} openDelay={200} events={{ hover: true, focus: true, touch: false }}>
            <Button variant={item.verb === 'delete' ? 'subtle' : 'default'} color={item.verb === 'delete' ? 'gray' : undefined} c={item.verb === 'delete' ? 'dimmed' : undefined} disabled={verb.busy} onClick={() => press(item)}>
              {item.label}
            </Button>
          </Tooltip>
        ))}
      </div>
      {verb.problem}
      <Modal opened={asking?.verb === 'delete'} onClose={close} title={`Delete ${job.name}?`} centered closeButtonProps={{ 'aria-label': 'Close' }}>
        <p>{asking?.effect}</p>
        {remove.error && <p className="bad" role="alert">{remove.error.message}</p>}
        <div className="row" style={{ justifyContent: 'flex-end', marginTop: 20 }}>
          <Button variant="default" onClick={close} data-autofocus>Keep it</Button>
          <Button className="button-bad" loading={remove.isPending} onClick={() => remove.mutate()}>Delete</Button>
        </div>
      </Modal>
      <Modal opened={longer} onClose={close} title="Train longer" centered closeButtonProps={{ 'aria-label': 'Close' }}>
        <form
          onSubmit={(event) => {
            event.preventDefault();
            verb.run('resume', { train: { steps: Number(steps) } });
            close();
          }}
        >
          <p className="dim" style={{ marginBottom: 12 }}>{asking?.effect}</p>
          <NumberInput label="Steps in all" description={`It has ${formatCount(job.total_steps)} now.`} min={job.total_steps + 1} value={steps} onChange={setSteps} thousandSeparator="," hideControls data-autofocus />
          <div className="row" style={{ justifyContent: 'flex-end', marginTop: 20 }}>
            <Button variant="default" onClick={close}>Not now</Button>
            <Button type="submit" disabled={!(Number(steps) > job.total_steps)}>Train longer</Button>
          </div>
        </form>
      </Modal>
    </div>
  );
}
