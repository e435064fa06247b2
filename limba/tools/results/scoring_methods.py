"""The ways in which models score texts."""

# How a model scores a text. The three are different measures, whose figures are not compared with each other.
CAUSAL = "causal"
MASKED = "masked"
GAPS = "gaps"
HOW = {
    CAUSAL: "log likelihood from left to right, after the start token",
    MASKED: "pseudo log likelihood: each token is predicted with itself and the later tokens of its word masked",
    GAPS: "log likelihood of the words that stand in gaps, of which the rest of the text is read",
}
