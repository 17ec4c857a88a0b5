//! The SGD step of the student and the EMA step of the teacher, both in the memory of their parameters.

use std::collections::HashMap;
use std::ops::Deref;

use burn::Tensor;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::Gradients;
use lacuna_models::ops::{self, Sgd, Update, ema_step, sgd_step};

/// A module that changes in place. Burn's `map` consumes a module and returns it; only here is it gone meanwhile.
#[derive(Debug)]
pub(crate) struct InPlace<M>(Option<M>);

impl<M> InPlace<M> {
    pub(crate) fn new(module: M) -> Self {
        Self(Some(module))
    }

    pub(crate) fn into_inner(self) -> M {
        self.0.expect("a module outside `update`")
    }

    /// Changes the module and returns what `change` has to say about it.
    pub(crate) fn update<T>(&mut self, change: impl FnOnce(M) -> (M, T)) -> T {
        let (module, result) = change(self.0.take().expect("a module outside `update`"));
        self.0 = Some(module);
        result
    }
}

impl<M> Deref for InPlace<M> {
    type Target = M;

    fn deref(&self) -> &M {
        self.0.as_ref().expect("a module outside `update`")
    }
}

/// SGD with momentum over all trained parameters of a module, in their memory.
#[derive(Debug, Default)]
pub struct Optimizer {
    /// Gradients whose common norm is larger are scaled down to it.
    gradient_norm_max: Option<f32>,
    velocities: HashMap<ParamId, Tensor<1>>,
}

impl Optimizer {
    /// Without momentum yet. Gradients whose common norm is above `gradient_norm_max` are scaled down to it.
    pub fn new(gradient_norm_max: Option<f32>) -> Self {
        Self { gradient_norm_max, velocities: HashMap::new() }
    }

    /// One step. Parameters that the loss does not depend on stay as they are. If the gradients are not finite, all
    /// parameters and the momentum stay, and the second value is false.
    pub fn step<M: Module>(&mut self, module: M, gradients: Gradients, sgd: Sgd) -> (M, bool) {
        let velocities = &mut self.velocities;
        let mut take = TakeTrained { gradients, velocities, ids: Vec::new(), updates: Vec::new() };
        let module = module.map(&mut take);
        let TakeTrained { ids, mut updates, .. } = take;
        let norm = ops::gradient_norm(&updates);
        if let Some(norm_max) = self.gradient_norm_max.map(f64::from)
            && norm > norm_max
        {
            for update in &mut updates {
                update.gradient = update.gradient.clone() * (norm_max / norm);
            }
        }
        let stepped = if norm.is_finite() {
            sgd_step(updates, sgd)
        } else {
            updates.into_iter().map(|update| (update.parameter, update.velocity)).collect()
        };
        let (parameters, velocities): (Vec<_>, Vec<_>) = stepped.into_iter().unzip();
        self.velocities.extend(ids.iter().copied().zip(velocities));
        (module.map(&mut PutBack(ids.into_iter().zip(parameters).collect())), norm.is_finite())
    }

    /// The momentum as a module like `module`, which is on a plain device: velocities in the place of
    /// parameters, 0 where there is none.
    pub(crate) fn velocities_of<M: Module>(&self, module: M) -> M {
        module.map(&mut ReplaceByVelocities(&self.velocities))
    }

    /// The momentum that [`Self::velocities_of`] gave, for a module with its parameters in the same order.
    pub(crate) fn set_velocities<M: Module>(&mut self, module: &M, velocities: &M) {
        let (mut trained, mut values) = (Parameters(Vec::new()), Parameters(Vec::new()));
        module.visit(&mut trained);
        velocities.visit(&mut values);
        let both = trained.0.into_iter().zip(values.0);
        let of_trained = both.filter(|(parameter, _)| parameter.trained);
        self.velocities = of_trained.map(|(parameter, velocity)| (parameter.id, velocity.value)).collect();
    }
}

/// The teacher after the student's step: `momentum·teacher + (1 − momentum)·student` for what is trained,
/// the student's for the rest, which is statistics.
pub fn update_teacher<M: Module>(teacher: M, student: &M, momentum: f32) -> M {
    let mut values = Parameters(Vec::new());
    student.visit(&mut values);
    let student = values.0.into_iter().map(|parameter| (parameter.id, parameter)).collect();
    let mut take = TakeAverages { student, ids: Vec::new(), pairs: Vec::new() };
    let teacher = teacher.map(&mut take);
    let TakeAverages { ids, pairs, .. } = take;
    teacher.map(&mut PutBack(ids.into_iter().zip(ema_step(pairs, momentum)).collect()))
}

/// The parameters that a forward pass changes, and no optimizer: the statistics of batch norm.
pub(crate) struct NormStatistics(HashMap<ParamId, Tensor<1>>);

impl NormStatistics {
    pub(crate) fn save<M: Module>(module: &M) -> Self {
        let mut values = Parameters(Vec::new());
        module.visit(&mut values);
        let untrained = values.0.into_iter().filter(|parameter| !parameter.trained);
        Self(untrained.map(|parameter| (parameter.id, parameter.value)).collect())
    }

    /// The module with the statistics that were saved.
    pub(crate) fn restore<M: Module>(mut self, module: M) -> M {
        module.map(&mut self)
    }
}

impl ModuleMapper for NormStatistics {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(value) = self.0.remove(&param.id) else { return param };
        param.map(|new| {
            let value = value.reshape(new.dims());
            if new.is_autodiff() { Tensor::from_inner(value) } else { value }
        })
    }
}

/// A tensor without its graph and its shape. The parameter that held it must be consumed, so that the
/// step finds its memory free to change.
fn flat<const D: usize>(value: Tensor<D>) -> Tensor<1> {
    let len: usize = value.dims().iter().product();
    value.without_autodiff().reshape([len])
}

/// What stands in the place of a parameter that was taken out: its shape, over a single number.
fn hollow<const D: usize>(value: &Tensor<D>) -> Tensor<D> {
    Tensor::<D>::zeros([1; D], &value.device()).expand(value.dims())
}

/// Takes out trained parameters with their gradients.
struct TakeTrained<'a> {
    gradients: Gradients,
    velocities: &'a mut HashMap<ParamId, Tensor<1>>,
    ids: Vec<ParamId>,
    updates: Vec<Update>,
}

impl ModuleMapper for TakeTrained<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, value, mapper) = param.consume();
        let Some(gradient) = value.grad_remove(&mut self.gradients) else {
            return Param::from_mapped_value(id, value, mapper);
        };
        let empty = hollow(&value);
        let (parameter, gradient) = (flat(value), flat(gradient));
        let velocity = self.velocities.remove(&id).unwrap_or_else(|| parameter.zeros_like());
        self.ids.push(id);
        self.updates.push(Update { parameter, gradient, velocity });
        Param::from_mapped_value(id, empty, mapper)
    }
}

/// The parameters of a module in its order.
struct Parameters(Vec<Parameter>);

struct Parameter {
    id: ParamId,
    value: Tensor<1>,
    trained: bool,
}

impl ModuleVisitor for Parameters {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.val();
        let trained = value.is_require_grad();
        self.0.push(Parameter { id: param.id, value: flat(value), trained });
    }
}

/// Takes out averages of what is trained; the rest becomes the student's.
struct TakeAverages {
    student: HashMap<ParamId, Parameter>,
    ids: Vec<ParamId>,
    pairs: Vec<(Tensor<1>, Tensor<1>)>,
}

impl ModuleMapper for TakeAverages {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, average, mapper) = param.consume();
        let Parameter { value, trained, .. } =
            self.student.remove(&id).expect("teacher and student have the same parameters");
        if !trained {
            return Param::from_mapped_value(id, value.reshape(average.dims()), mapper);
        }
        let empty = hollow(&average);
        self.ids.push(id);
        self.pairs.push((flat(average), value));
        Param::from_mapped_value(id, empty, mapper)
    }
}

/// Puts velocities in the place of parameters.
struct ReplaceByVelocities<'a>(&'a HashMap<ParamId, Tensor<1>>);

impl ModuleMapper for ReplaceByVelocities<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let velocity = self.0.get(&param.id).cloned();
        param.map(|value| match velocity {
            Some(velocity) => velocity.reshape(value.dims()),
            None => value.zeros_like(),
        })
    }
}

/// Puts back what was taken out.
struct PutBack(HashMap<ParamId, Tensor<1>>);

impl ModuleMapper for PutBack {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(value) = self.0.remove(&param.id) else { return param };
        param.map(|hollow| {
            let value = value.reshape(hollow.dims());
            if hollow.is_autodiff() { Tensor::from_inner(value).require_grad() } else { value }
        })
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    fn parameter(values: [f32; 2], device: &Device) -> Param<Tensor<1>> {
        Param::from_data(values, device)
    }

    #[test]
    fn gradients_are_shortened_together() {
        let device = Device::flex().autodiff();
        let sgd = Sgd { learning_rate: 1.0, momentum: 0.0, weight_decay: 0.0 };
        for (norm_max, factor) in [(None, 1.0), (Some(20.0), 1.0), (Some(5.0), 0.5)] {
            let module = (parameter([0.0; 2], &device), parameter([0.0; 2], &device));
            // Gradients of (6, 0) and (0, 8): a norm of 10.
            let loss = module.0.val().narrow(0, 0, 1) * 6.0 + module.1.val().narrow(0, 1, 1) * 8.0;
            let (module, stepped) = Optimizer::new(norm_max).step(module, loss.backward(), sgd);
            assert!(stepped);
            assert_eq!(ops::values(module.0.val()), [-6.0 * factor, 0.0]);
            assert_eq!(ops::values(module.1.val()), [0.0, -8.0 * factor]);
        }
    }

    #[test]
    fn momentum_is_kept_and_what_has_no_gradient_stays() {
        let device = Device::flex().autodiff();
        let sgd = Sgd { learning_rate: 0.5, momentum: 0.5, weight_decay: 0.0 };
        let mut module = (parameter([1.0; 2], &device), parameter([7.0; 2], &device).set_require_grad(false));
        let mut optimizer = Optimizer::default();
        for _ in 0..2 {
            let gradients = module.0.val().sum().backward();
            (module, _) = optimizer.step(module, gradients, sgd);
        }
        // Velocities 1 and 1.5.
        assert_eq!(ops::values(module.0.val()), [-0.25; 2]);
        assert_eq!(ops::values(module.1.val()), [7.0; 2]);
        assert!(module.0.val().is_require_grad() && !module.1.val().is_require_grad());
    }

    #[test]
    fn a_gradient_that_is_not_finite_changes_nothing() {
        let device = Device::flex().autodiff();
        let sgd = Sgd { learning_rate: 1.0, momentum: 0.9, weight_decay: 0.1 };
        let module = parameter([1.0, 2.0], &device);
        let gradients = (module.val() * f32::INFINITY).sum().backward();
        let (module, stepped) = Optimizer::new(Some(1.0)).step(module, gradients, sgd);
        assert!(!stepped && module.val().is_require_grad());
        assert_eq!(ops::values(module.val()), [1.0, 2.0]);
    }

    #[test]
    fn the_teacher_follows_what_is_trained_and_takes_over_the_rest() {
        let device = Device::flex().autodiff();
        let student = (parameter([4.0; 2], &device), parameter([3.0; 2], &device).set_require_grad(false));
        let teacher = student.valid();
        let student = (
            student.0.map(|value| (value * 0.0).detach().require_grad()),
            student.1.map(|value| value + 1.0),
        );
        let teacher = update_teacher(teacher, &student, 0.75);
        assert_eq!(ops::values(teacher.0.val()), [3.0; 2]);
        assert_eq!(ops::values(teacher.1.val()), [4.0; 2]);
        assert!(!teacher.0.val().is_autodiff());
    }
}
