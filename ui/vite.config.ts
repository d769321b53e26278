import react from '@vitejs/plugin-react';
import { defineConfig } from 'vitest/config';

// The server serves the built files itself, so users need no Node. In development its API is proxied.
const server = process.env.SAFELIGHT_URL ?? 'http://127.0.0.1:8765';

export default defineConfig({
  base: '/',
  plugins: [react()],
  build: { outDir: '../server/static', emptyOutDir: true, target: 'es2022', chunkSizeWarningLimit: 700 },
  server: { proxy: { '/v1': server, '/healthz': server, '/readyz': server } },
  // rjsf imports dayjs's plugins as a bundler finds them, not as Node does.
  test: { environment: 'jsdom', include: ['src/**/*.test.{ts,tsx}'], server: { deps: { inline: ['@rjsf/mantine'] } } },
});
