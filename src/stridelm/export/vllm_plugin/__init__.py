"""The plugin that lets vLLM draft with a gated adapter. vLLM finds it by its entry point; without vLLM, its parts that
need vLLM are never imported (docs/engines.md)."""
