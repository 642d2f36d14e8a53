"""Between ecosystems: Hugging Face models to MLX, heads to and from PyTorch, and the proof that both agree."""
