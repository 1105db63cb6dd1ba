"""The plugin that lets vLLM draft with a gated adapter. vLLM finds it by its entry point; nothing here is imported
where vLLM is not (docs/engines.md)."""
