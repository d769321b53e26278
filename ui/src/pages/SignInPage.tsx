import { Button, PasswordInput } from '@mantine/core';
import { useMutation } from '@tanstack/react-query';
import { useState } from 'react';
import { api } from '../api/api';

export function SignInPage({ onDone }: { onDone: () => void }) {
  const [token, setToken] = useState('');
  const signIn = useMutation({ mutationFn: () => api.signIn(token), onSuccess: onDone });
  return (
    <main style={{ maxWidth: 400, marginTop: '18vh' }}>
      <form
        className="stack"
        onSubmit={(event) => {
          event.preventDefault();
          signIn.mutate();
        }}
      >
        <h1>Sign in to Safelight</h1>
        <p className="dim">This server asks for its token: the value of SAFELIGHT_TOKEN where it was started.</p>
        <PasswordInput
          label="Token"
          autoFocus
          autoComplete="current-password"
          value={token}
          onChange={(event) => setToken(event.currentTarget.value)}
          error={signIn.error?.message}
          visibilityToggleButtonProps={{ 'aria-label': 'Show the token' }}
        />
        <Button type="submit" loading={signIn.isPending}>Sign in</Button>
      </form>
    </main>
  );
}
