import { defineConfig } from "vite";

// One script and one style sheet with fixed names: the server and the single-file page name them.
export default defineConfig({
  build: {
    outDir: "../static",
    emptyOutDir: true,
    assetsInlineLimit: 0,
    modulePreload: false,
    cssCodeSplit: false,
    target: "es2022",
    rollupOptions: {
      input: "src/main.ts",
      output: {
        format: "iife",
        entryFileNames: "app.js",
        assetFileNames: "app.css",
      },
    },
  },
  publicDir: "public",
});
