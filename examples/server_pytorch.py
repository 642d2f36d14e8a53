"""A head that was trained on a Mac, run by PyTorch on a CUDA machine; nothing of MLX is imported.

diversed convert head ~/.cache/diversed/heads/gsm8k head --to torch     # on the Mac; or copy the folder as it is
python examples/server_pytorch.py meta-llama/Llama-3.2-1B-Instruct meta-llama/Llama-3.1-8B-Instruct head "Why?"
"""

import sys

from diversed_mlx.convert.reference import Dynamic, EnsembleHead, Sampling
from diversed_mlx.convert.reference_loop import TorchPair, pick_device, speculate


def main(draft: str, target: str, head_folder: str, question: str, device: str = "cuda") -> None:
    """Answer one question and say how many drafted tokens were accepted."""
    pair, tokenizer = TorchPair.load(draft=draft, target=target, device=device)
    sizes = [lm.model.config.get_text_config().hidden_size for lm in (pair.draft, pair.target)]
    head = EnsembleHead.load(head_folder, *sizes).to(pick_device(device))
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=False
    )
    blocks = list(speculate(pair, prompt, verifier=Dynamic(head), sampling=Sampling(temp=0.7), max_tokens=200))
    print(tokenizer.decode([token for block in blocks for token in block.tokens], skip_special_tokens=True))
    accepted, proposed = sum(block.accepted for block in blocks), sum(block.proposed for block in blocks)
    print(f"accepted {accepted} of {proposed} drafted tokens in {len(blocks)} rounds", file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
