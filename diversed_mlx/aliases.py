"""Short names of models, and pairs to name where another does not fit. Knows names only, and loads nothing."""

ALIASES = {
    "1b": "mlx-community/Llama-3.2-1B-Instruct-4bit",
    "3b": "mlx-community/Llama-3.2-3B-Instruct-4bit",
    "8b": "mlx-community/Meta-Llama-3.1-8B-Instruct-4bit",
    "qwen3-0.6b": "mlx-community/Qwen3-0.6B-4bit",
    "qwen3-8b": "mlx-community/Qwen3-8B-4bit",
    "gemma3-4b": "mlx-community/gemma-3-4b-it-4bit",
    "gemma3-12b": "mlx-community/gemma-3-12b-it-4bit",
}
EMBEDDED = {"tiny-draft": "draft", "tiny-target": "target"}  # folders of the pair that ships in the package

# Pairs to name when another does not fit: draft, target, gigabytes of both in 4 bits.
PAIRS = (("gemma3-4b", "gemma3-12b", 10.5), ("1b", "8b", 5.3), ("qwen3-0.6b", "qwen3-8b", 5.0), ("1b", "3b", 2.6))
