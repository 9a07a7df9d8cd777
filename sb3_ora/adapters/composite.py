from sb3_ora.adapters.ensemble import EnsembleAdapter


class CompositeAdapter(EnsembleAdapter):
    """
    Composite IQN: the same ensemble, compared by the mean of its heads throughout. It is the ablation that separates
    what the ensemble gives from what the adaptation gives.

    :param verbose: verbosity level
    """

    compares = False
