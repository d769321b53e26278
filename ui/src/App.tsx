import { useQueryClient } from '@tanstack/react-query';
import { lazy, Suspense, useEffect, useState } from 'react';
import { Link, Route, Switch } from 'wouter';
import { onSignInNeeded } from './api/http';
import { Notice } from './components/bits';
import { Shell } from './components/Shell';
import { JobsPage } from './pages/JobsPage';
import { SignInPage } from './pages/SignInPage';

// The form and the charts are the two heavy parts; the list opens without them.
const NewPage = lazy(() => import('./pages/NewPage').then((m) => ({ default: m.NewPage })));
const JobPage = lazy(() => import('./pages/JobPage').then((m) => ({ default: m.JobPage })));
const ModelsPage = lazy(() => import('./pages/ModelsPage').then((m) => ({ default: m.ModelsPage })));
const SystemPage = lazy(() => import('./pages/SystemPage').then((m) => ({ default: m.SystemPage })));

export function App() {
  const client = useQueryClient();
  const [signedOut, setSignedOut] = useState(false);
  useEffect(() => onSignInNeeded(() => setSignedOut(true)), []);
  // The page stays mounted behind the sign-in, so that a session that ends while someone types costs nothing.
  return (
    <>
      {signedOut && (
        <SignInPage
          onDone={() => {
            setSignedOut(false);
            void client.invalidateQueries();
          }}
        />
      )}
      <div hidden={signedOut}>
        <Pages />
      </div>
    </>
  );
}

function Pages() {
  return (
    <Shell>
      <Suspense fallback={<div className="skeleton" style={{ height: 240 }} aria-label="Loading" role="status" />}>
        <Switch>
          <Route path="/" component={JobsPage} />
          <Route path="/new" component={NewPage} />
          <Route path="/jobs/:id">{({ id }) => <JobPage key={id} id={id} />}</Route>
          <Route path="/models" component={ModelsPage} />
          <Route path="/system" component={SystemPage} />
          <Route>
            <Notice title="There is no page here" action={<Link href="/" className="link">To the jobs</Link>} />
          </Route>
        </Switch>
      </Suspense>
    </Shell>
  );
}
