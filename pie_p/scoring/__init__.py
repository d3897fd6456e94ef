"""How far off end-to-end predictions are, on groups that were never seen.

In reading order: `scores` (one error, one `Score`), `splits` (which group is left out), `folds` (fit without it, answer for it), `facts`
and `baselines` (what simpler methods say), `inner_nodes` (PIE-P's weighted tree), `ablations` (the physics without one of its terms),
`engines` (another engine version from ten rows), `decisions` (which configuration to choose), `working` (which scalar matters, which rows
are worst), `end_to_end` (all of it in one report).
"""

from pie_p.scoring.end_to_end import EvaluationReport, evaluate_end_to_end
from pie_p.scoring.scores import Score, score

__all__ = ["EvaluationReport", "Score", "evaluate_end_to_end", "score"]
