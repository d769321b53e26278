/** The buttons that the job's state has, each saying what it will do before it is pressed. */
import { Button, Modal, Tooltip } from '@mantine/core';
import { useMutation, useQueryClient } from '@tanstack/react-query';
import { useState } from 'react';
import { Link, useLocation } from 'wouter';
import { api } from '../../api/api';
import { useOpenJob } from '../../api/jobStream';
import { useVerb } from '../../components/useVerb';
import { isAsked, verbsOf, type Verb } from '../../lib/status';

export function Controls() {
  const { job } = useOpenJob();
  const client = useQueryClient();
  const [, navigate] = useLocation();
  const verb = useVerb(job);
  const [removing, setRemoving] = useState<Verb | null>(null);
  const close = () => setRemoving(null);
  const remove = useMutation({
    mutationFn: () => api.remove(job.id),
    onSuccess: () => {
      void client.invalidateQueries({ queryKey: ['jobs'] });
      navigate('/', { replace: true });
    },
  });

  const button = (item: Verb) => {
    const { verb: what, label } = item;
    if (what === 'edit') return <Button variant="default" component={Link} href={`/new?resume=${encodeURIComponent(job.id)}`}>{label}</Button>;
    if (what === 'delete') return <Button variant="subtle" color="gray" c="dimmed" onClick={() => setRemoving(item)}>{label}</Button>;
    // A wish that waits for its turn is not sent twice; pressing again would be answered by the same round.
    const asked = isAsked(job, what);
    return (
      <Button variant="default" disabled={verb.busy} aria-pressed={asked || undefined} className={asked ? 'button-asked' : undefined} onClick={() => !asked && verb.run(what)}>
        {asked ? `${label}: asked` : label}
      </Button>
    );
  };
  return (
    <div className="controls">
      <div className="row wrap controls-row">
        {verbsOf(job).map((item) => (
          <Tooltip key={item.verb} label={isAsked(job, item.verb) ? 'Asked for; it comes after this step.' : item.effect} multiline w={240} position="bottom" openDelay={200} events={{ hover: true, focus: true, touch: false }}>
            {button(item)}
          </Tooltip>
        ))}
      </div>
      {verb.problem}
      <Modal opened={removing !== null} onClose={close} title={`Delete ${job.name}?`} centered closeButtonProps={{ 'aria-label': 'Close' }}>
        <p>{removing?.effect}</p>
        {remove.error && <p className="bad" role="alert">{remove.error.message}</p>}
        <div className="row" style={{ justifyContent: 'flex-end', marginTop: 20 }}>
          <Button variant="default" onClick={close} data-autofocus>Keep it</Button>
          <Button className="button-bad" loading={remove.isPending} onClick={() => remove.mutate()}>Delete</Button>
        </div>
      </Modal>
    </div>
  );
}
