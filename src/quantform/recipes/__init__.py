"""Which parameter gets which method and format: recipes, the models they see, importance files, orders of heads."""

from __future__ import annotations

from quantform.recipes.everything import assign_matrices
from quantform.recipes.heads import head_order, interleaved_heads, untiled_heads
from quantform.recipes.importance import Importance, ImportedImportance, import_importance
from quantform.recipes.load import Configure, LoadedRecipe, as_recipe_error, load_recipe
from quantform.recipes.model import Model, Parameter, Sources
from quantform.recipes.recipe import Choice, Recipe, Selection, UseChoice

__all__ = [
    "Choice",
    "Configure",
    "Importance",
    "ImportedImportance",
    "LoadedRecipe",
    "Model",
    "Parameter",
    "Recipe",
    "Selection",
    "Sources",
    "UseChoice",
    "as_recipe_error",
    "assign_matrices",
    "head_order",
    "import_importance",
    "interleaved_heads",
    "load_recipe",
    "untiled_heads",
]
