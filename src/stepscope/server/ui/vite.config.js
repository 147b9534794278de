import { defineConfig } from "vite";

// One script and one style sheet with fixed names: the server and the single-file page name them.
// The page of a job has a script of its own (mode "job"), which no single-file page needs to hold.
export default defineConfig(({ mode }) => {
  const ofJob = mode === "job";
  return {
    build: {
      outDir: "../static",
      emptyOutDir: !ofJob,
      assetsInlineLimit: 0,
      modulePreload: false,
      cssCodeSplit: false,
      target: "es2022",
      rollupOptions: {
        input: ofJob ? "src/job_main.ts" : "src/main.ts",
        output: {
          format: "iife",
          entryFileNames: ofJob ? "job.js" : "app.js",
          assetFileNames: "app.css",
        },
      },
    },
    publicDir: ofJob ? false : "public",
  };
});
