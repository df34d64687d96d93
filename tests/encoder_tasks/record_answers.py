"""Record what transformers' pipeline answers into `answers.json`; run with transformers 4, whose version it records.

pip install "transformers<5" && python -m tests.encoder_tasks.record_answers
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch
import transformers
from transformers import BertConfig, BertForQuestionAnswering, PreTrainedTokenizerFast, QuestionAnsweringPipeline
from transformers.modeling_outputs import QuestionAnsweringModelOutput

from tests.encoder_tasks.fixed import ANSWERS, FAMILIES, fixed_tokenizer, questions, scores_of


class Scored(BertForQuestionAnswering):
    """A model whose logits are `scores_of`."""

    def forward(self, input_ids: Any, **_inputs: Any) -> Any:
        scores = torch.from_numpy(np.stack([scores_of(row) for row in input_ids.numpy()]))
        return QuestionAnsweringModelOutput(start_logits=scores[:, 0], end_logits=scores[:, 1])


def main() -> None:
    """Answer the questions, and write the file."""
    config = BertConfig(vocab_size=9, hidden_size=4, num_hidden_layers=1, num_attention_heads=1, intermediate_size=4)
    pipelines = {}
    for family in FAMILIES:
        made = fixed_tokenizer(family)
        cls, sep = made.id_to_token(0), made.id_to_token(1)
        fast = PreTrainedTokenizerFast(tokenizer_object=made, cls_token=cls, sep_token=sep, pad_token=sep)
        pipelines[family] = QuestionAnsweringPipeline(
            model=Scored(config).eval(), tokenizer=fast, task="question-answering"
        )
    recorded = []
    for case in questions(150, seed=7):
        found = pipelines[case["family"]](
            question=case["question"],
            context=case["context"],
            max_seq_len=case["max_length"],
            doc_stride=case["overlap"],
            top_k=case["top_k"],
            max_answer_len=case["max_tokens"],
            handle_impossible_answer=case["impossible"],
        )
        answers = [found] if isinstance(found, dict) else found
        recorded.append([[each["answer"], each["score"], each["start"], each["end"]] for each in answers])
    ANSWERS.write_text(
        json.dumps({"transformers": transformers.__version__, "answers": recorded}, ensure_ascii=False) + "\n"
    )


if __name__ == "__main__":
    main()
