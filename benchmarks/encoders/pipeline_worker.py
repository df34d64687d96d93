"""Answers questions with transformers' pipeline; run as a file by the Python of an environment with transformers 4."""

import json
import sys
from pathlib import Path


def main() -> None:
    """Read a request as JSON from standard input, and print the answers: text, start, end, score."""
    from transformers import BertForQuestionAnswering, PreTrainedTokenizerFast, QuestionAnsweringPipeline

    request = json.load(sys.stdin)
    source = Path(request["source"])
    # A tokenizer_config.json of transformers 5 names a class that version 4 does not have.
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(source / "tokenizer.json"),
        cls_token="[CLS]",
        sep_token="[SEP]",
        pad_token="[PAD]",
        unk_token="[UNK]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )
    model = BertForQuestionAnswering.from_pretrained(source).eval()
    pipeline = QuestionAnsweringPipeline(model=model, tokenizer=tokenizer, task="question-answering")
    answers = []
    for question, context in request["pairs"]:
        found = pipeline(
            question=question,
            context=context,
            top_k=request["top_k"],
            max_seq_len=request["longest"],
            doc_stride=request["stride"],
        )
        found = [found] if isinstance(found, dict) else found
        answers.append([[each["answer"], each["start"], each["end"], each["score"]] for each in found])
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
